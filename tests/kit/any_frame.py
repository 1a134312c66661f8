"""A frame of any type with any values, as a strategy: a new frame is among them by itself."""

from typing import get_type_hints

from hypothesis import strategies as st

from common.messages import TYPES, Frame


def any_frame(numbers: st.SearchStrategy[int], texts: st.SearchStrategy[str]) -> st.SearchStrategy[Frame]:
    by_type = {
        int: numbers,
        str: texts,
        bool: st.booleans(),
        bytes: st.binary(max_size=300),
        tuple[str, ...]: st.lists(texts).map(tuple),
    }

    def built(frame: type[Frame]) -> st.SearchStrategy[Frame]:
        return st.builds(frame, **{name: by_type[hint] for name, hint in get_type_hints(frame).items()})

    # By type first: hypothesis would lay a nested `one_of` flat, and a caller's own frames would come seldom.
    return st.sampled_from([*TYPES.values()]).flatmap(built)
