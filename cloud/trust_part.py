"""The trust part of a hub: the records of `cloud.trust`, and all that judges by them."""

import asyncio

from cloud.hub_settings import HubSettings
from cloud.records.records import Records
from cloud.trust import audit
from cloud.trust.audit import Event
from cloud.trust.authorities import Authorities
from cloud.trust.credentials import Credentials
from cloud.trust.denials import Denials
from cloud.trust.generations import Generations
from cloud.trust.tokens import Tokens
from cloud.trust.trust_store import TrustStore
from common.metrics import Metrics


class TrustPart:
    """The trust part of one hub."""

    def __init__(self, settings: HubSettings, records: Records, metrics: Metrics) -> None:
        """Read the records, and the files that the settings name. Raises SettingsError."""
        store = TrustStore(records)
        self.denials = Denials(store)
        self.generations = Generations(store, metrics)
        self._authorities = Authorities(settings.tls_ca)
        self.credentials = Credentials(
            self.denials, self.generations, self._authorities, require_rights=settings.require_rights
        )
        self.tokens = Tokens(store)

    async def read_again(self) -> bool:
        """Read the CAs again if they have changed. Returns True if fewer certificates count."""
        if self._authorities.has_changed() and (gone := await asyncio.to_thread(self._authorities.reload)):
            audit.add(Event.CERTIFICATES, who="hub", read="--tls-ca", taken_out=gone)
            return True
        return False
