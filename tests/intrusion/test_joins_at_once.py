"""Two holders of one token join at the same moment."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.kit.bridge import Bridge
from tests.kit.enrolling import NodeKey
from tests.kit.joinable_hub import JoinableHub


def test_of_many_joins_at_once_a_token_for_one_use_lets_one_in(bridge: Bridge, tmp_path: Path) -> None:
    joinable = JoinableHub(bridge, tmp_path)
    token = joinable.token("--node=edge-*")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: joinable.join(token, f"edge-{number}"), range(8)))
    assert sum(isinstance(answer, NodeKey) for answer in answers) == 1
    assert '"used":1' in joinable.operator("token", "list", "-o=json").replace(" ", "")
