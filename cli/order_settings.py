"""The settings of the orders to the hub."""

from dataclasses import dataclass

from cli.operator_settings import OperatorSettings


@dataclass(frozen=True, kw_only=True)
class ForgetSettings(OperatorSettings):
    """`csi-bridge forget`."""

    command = "forget"


@dataclass(frozen=True, kw_only=True)
class TrustSettings(OperatorSettings):
    """`csi-bridge trust`."""

    command = "trust"
