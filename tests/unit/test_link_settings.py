"""What every process with a link takes, and what of it does not fit together."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud.driver_settings import DriverSettings
from cloud.hub_settings import HubSettings
from common.errors import SettingsError
from common.limits import Limits
from common.link_settings import LinkSettings
from edge.settings import AgentSettings
from tests.support.certificates import Authority

TLS = {"tls_ca": "/ca.pem", "tls_cert": "/cert.pem", "tls_key": "/key.pem"}
EDGE = {"node": "n1", "hub": "wss://hub:1", **TLS}
DRIVER = {"drivername": "d.example"}


def why(settings: type[LinkSettings], **given: str | list[str]) -> str:
    """What is told of settings that are refused."""
    with pytest.raises(SettingsError) as error:
        settings.from_texts(given)
    return str(error.value)


# -------------------- limits --------------------


def test_the_defaults_are_those_of_the_session() -> None:
    assert LinkSettings.from_texts({}).limits() == Limits()


def test_every_limit_reaches_the_session() -> None:
    given = {
        "chunk_bytes": "1KiB",
        "max_message_bytes": "64KiB",
        "stream_window_bytes": "16KiB",
        "session_window_bytes": "1MiB",
        "max_calls": "2",
        "keepalive_s": "300ms",
        "hello_timeout_s": "400ms",
    }
    assert LinkSettings.from_texts(given).limits() == Limits(
        chunk_bytes=1024,
        max_message_bytes=65_536,
        stream_window_bytes=16_384,
        session_window_bytes=1_048_576,
        max_streams=2,
        keepalive_s=0.3,
        hello_timeout_s=0.4,
    )


@pytest.mark.parametrize(("window", "message"), [("1MiB", "4MiB"), ("64MiB", "64MiB"), ("5MiB", "4MiB")])
def test_a_window_that_does_not_hold_its_largest_message_is_refused(window: str, message: str) -> None:
    said = why(LinkSettings, session_window_bytes=window, max_message_bytes=message)
    assert "SESSION_WINDOW or --session-window=" in said
    assert "must be at least one and a half times --max-message" in said


def test_one_and_a_half_times_the_largest_message_is_enough() -> None:
    LinkSettings.from_texts({"session_window_bytes": "6MiB", "max_message_bytes": "4MiB"})


@pytest.mark.parametrize("node", ["node", "n1"])
def test_the_smallest_and_the_largest_of_everything_fit_together(node: str) -> None:
    LinkSettings.from_texts({"max_message_bytes": "64MiB", "session_window_bytes": "1GiB", "chunk_bytes": "256KiB"})
    LinkSettings.from_texts({"max_message_bytes": "64KiB", "session_window_bytes": "1MiB", "chunk_bytes": "1KiB"})


# -------------------- TLS --------------------


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (("tls_ca",), "TLS_CERT or --tls-cert"),
        (("tls_cert",), "TLS_CA or --tls-ca"),
        (("tls_ca", "tls_cert"), "TLS_KEY or --tls-key"),
        (("tls_ca", "tls_key"), "TLS_CERT or --tls-cert"),
        (("tls_cert", "tls_key"), "TLS_CA or --tls-ca"),
    ],
)
def test_one_tls_file_without_the_others_names_the_first_that_is_missing(given: tuple[str, ...], missing: str) -> None:
    said = why(LinkSettings, **{name: TLS[name] for name in given})
    assert missing in said
    assert "CA, certificate and key are needed together" in said


def test_without_tls_files_there_is_no_identity() -> None:
    assert LinkSettings.from_texts({}).tls(server=True) is None


def test_tls_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    settings = LinkSettings.from_texts({name: str(tmp_path / name) for name in TLS})
    with pytest.raises(SettingsError, match=f"TLS_CA or --tls-ca=.*cannot be used.*{tmp_path / 'tls_ca'}"):
        settings.tls(server=True)


# -------------------- listening and dialling --------------------


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "[::1]:1", "localhost:1"])
def test_a_hub_without_tls_needs_insecure_and_a_loopback_address(listen: str) -> None:
    assert "--listen=" in why(HubSettings, listen=listen)
    assert "needs --tls-ca, --tls-cert and --tls-key" in why(HubSettings, listen=listen)
    HubSettings.from_texts({"listen": listen, "insecure": "true"})


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "[::]:1", "10.0.0.7:1", "hub.example:1"])
def test_insecure_on_another_address_is_refused_by_its_name(listen: str) -> None:
    said = why(HubSettings, listen=listen, insecure="true")
    assert "CSI_BRIDGE_HUB_INSECURE or --insecure=true: is for loopback addresses" in said
    HubSettings.from_texts({"listen": listen, **TLS})


def test_a_hub_for_this_host_alone_needs_no_tls() -> None:
    assert HubSettings.from_texts({}).listen is None


@pytest.mark.parametrize("hub", ["ws://10.0.0.7:1", "ws://hub.example:1", "ws://0.0.0.0:1"])
@pytest.mark.parametrize("insecure", ["true", "false"])
def test_plain_ws_to_another_host_is_refused_with_and_without_insecure(hub: str, insecure: str) -> None:
    said = why(AgentSettings, node="n1", hub=hub, insecure=insecure)
    assert f"CSI_BRIDGE_EDGE_HUB or --hub={hub}: plain ws:// is for loopback addresses with --insecure" in said


def test_plain_ws_on_this_host_needs_insecure() -> None:
    assert "plain ws://" in why(AgentSettings, node="n1", hub="ws://127.0.0.1:1")
    AgentSettings.from_texts({"node": "n1", "hub": "ws://127.0.0.1:1", "insecure": "true"})


@pytest.mark.parametrize("insecure", ["true", "false"])
def test_wss_without_tls_files_is_refused(insecure: str) -> None:
    said = why(DriverSettings, **DRIVER, hub_endpoint="wss://hub:1", insecure=insecure)
    assert "HUB_ENDPOINT or --hub-endpoint=wss://hub:1: wss:// needs --tls-ca" in said
    DriverSettings.from_texts({**DRIVER, "hub_endpoint": "wss://hub:1", **TLS})


def test_a_proxy_driver_beside_the_hub_needs_no_tls() -> None:
    DriverSettings.from_texts(DRIVER)


@pytest.mark.parametrize("which", ["ca", "cert", "key"])
def test_a_tls_file_that_cannot_be_used_is_named_by_its_own_flag(short_dir: Path, which: str) -> None:
    pem = Authority(short_dir).hub()
    texts = {f"tls_{name}": str(getattr(pem, name)) for name in ("ca", "cert", "key")}
    getattr(pem, which).unlink()
    with pytest.raises(
        SettingsError, match=f"CSI_BRIDGE_HUB_TLS_{which.upper()} or --tls-{which}={texts[f'tls_{which}']}"
    ):
        HubSettings.from_texts(texts).tls(server=True)


# -------------------- the hub's UNIX socket --------------------


def test_a_group_needs_a_list_of_users() -> None:
    said = why(HubSettings, uds_group="0")
    assert "CSI_BRIDGE_HUB_UDS_GROUP or --uds-group=0: needs at least one --uds-allow-uid" in said


def test_a_list_of_users_needs_a_group() -> None:
    said = why(HubSettings, uds_allow_uid=["1000"])
    assert "CSI_BRIDGE_HUB_UDS_ALLOW_UID or --uds-allow-uid=1000: needs --uds-group" in said


@pytest.mark.parametrize(("group", "gid"), [("0", 0), ("4294967294", 4294967294), ("root", 0)])
def test_a_group_is_a_number_or_a_name(group: str, gid: int) -> None:
    assert HubSettings.from_texts({"uds_group": group, "uds_allow_uid": ["0"]}).uds_gid() == gid


@pytest.mark.parametrize("group", ["no-such-group-here", "4294967295", "99999999999999999999", "²"])
def test_a_group_that_is_none_is_refused_by_its_flag(group: str) -> None:
    settings = HubSettings.from_texts({"uds_group": group, "uds_allow_uid": ["0"]})
    with pytest.raises(SettingsError, match="CSI_BRIDGE_HUB_UDS_GROUP or --uds-group="):
        settings.uds_gid()


def test_without_a_group_the_socket_is_its_users_alone() -> None:
    assert HubSettings.from_texts({}).uds_gid() is None


def test_an_agent_needs_its_name_and_its_hub() -> None:
    assert "CSI_BRIDGE_EDGE_NODE or --node: required" in why(AgentSettings, hub="wss://hub:1", **TLS)
    assert "CSI_BRIDGE_EDGE_HUB or --hub: required" in why(AgentSettings, node="n1")
    assert AgentSettings.from_texts(EDGE).driver == ()


def test_several_drivers_are_several_flags() -> None:
    settings = AgentSettings.from_texts({**EDGE, "driver": ["/a.sock", "unix:///b.sock"]})
    assert settings.driver == (Path("/a.sock"), Path("/b.sock"))
