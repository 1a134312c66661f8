"""AES-256-GCM (NIST SP 800-38D) by the libcrypto that Python's own `ssl` has loaded.

The cryptography library brings a libcrypto of its own, and takes 9 MB of an agent. It is used with a Python that
exports none, such as a static build.
"""

import _hashlib
import ctypes
from ctypes import byref, c_char_p, c_int, c_void_p, create_string_buffer
from functools import cache

KEY_BYTES = 32
NONCE_BYTES = 12
_TAG_BYTES = 16
_GET_TAG, _SET_TAG = 0x10, 0x11  # openssl/evp.h


def cipher(key: bytes) -> "_OfPython | _OfLibrary":
    """A cipher with a key of 32 bytes. `bound` is authenticated, too; ValueError: it is not what was encrypted."""
    try:
        _libcrypto()
    except (AttributeError, OSError):
        return _OfLibrary(key)
    return _OfPython(key)


class _OfPython:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def encrypt(self, nonce: bytes, data: bytes, bound: bytes, /) -> bytes:
        return self._run(nonce, data, bound, None)

    def decrypt(self, nonce: bytes, data: bytes, bound: bytes, /) -> bytes:
        return self._run(nonce, data[:-_TAG_BYTES], bound, data[-_TAG_BYTES:])

    def _run(self, nonce: bytes, data: bytes, bound: bytes, tag: bytes | None) -> bytes:
        if len(self._key) != KEY_BYTES or len(nonce) != NONCE_BYTES or (tag is not None and len(tag) != _TAG_BYTES):
            raise ValueError("the key, the nonce or the data is too short")  # libcrypto reads as many bytes
        library = _libcrypto()
        encrypts = tag is None
        context = library.EVP_CIPHER_CTX_new()
        out = create_string_buffer(len(data) + _TAG_BYTES)
        last = create_string_buffer(tag or b"", _TAG_BYTES)
        length = c_int()
        try:
            if not (
                library.EVP_CipherInit_ex(context, library.EVP_aes_256_gcm(), None, self._key, nonce, encrypts)
                and (encrypts or library.EVP_CIPHER_CTX_ctrl(context, _SET_TAG, _TAG_BYTES, last))
                and library.EVP_CipherUpdate(context, None, byref(length), bound, len(bound))
                and library.EVP_CipherUpdate(context, out, byref(length), data, len(data))
                and library.EVP_CipherFinal_ex(context, byref(out, length.value), byref(length))
                and (not encrypts or library.EVP_CIPHER_CTX_ctrl(context, _GET_TAG, _TAG_BYTES, last))
            ):
                raise ValueError("the data is not what was encrypted")
        finally:
            library.EVP_CIPHER_CTX_free(context)
        return out.raw[: len(data)] + (last.raw if encrypts else b"")


@cache
def _libcrypto() -> ctypes.CDLL:
    # A static Python exports none: AttributeError or OSError.
    library = ctypes.CDLL(_hashlib.__file__)  # finds the functions of the libraries that this one has loaded, too
    for name, result, arguments in (
        ("EVP_CIPHER_CTX_new", c_void_p, ()),
        ("EVP_CIPHER_CTX_free", None, (c_void_p,)),
        ("EVP_aes_256_gcm", c_void_p, ()),
        ("EVP_CipherInit_ex", c_int, (c_void_p, c_void_p, c_void_p, c_char_p, c_char_p, c_int)),
        ("EVP_CIPHER_CTX_ctrl", c_int, (c_void_p, c_int, c_int, c_void_p)),
        ("EVP_CipherUpdate", c_int, (c_void_p, c_void_p, c_void_p, c_char_p, c_int)),
        ("EVP_CipherFinal_ex", c_int, (c_void_p, c_void_p, c_void_p)),
    ):
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


class _OfLibrary:
    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  # see above

        self._cipher = AESGCM(key)
        self.encrypt = self._cipher.encrypt

    def decrypt(self, nonce: bytes, data: bytes, bound: bytes, /) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  # as above

        try:
            return self._cipher.decrypt(nonce, data, bound)
        except InvalidTag as error:
            raise ValueError("the data is not what was encrypted") from error
