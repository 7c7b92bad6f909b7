"""Arguments with nested leaves, by the names of a program's inputs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from ekiden.runtime.errors import InputError
from ekiden.runtime.executable.pytree import PytreeInputs


class Layer(NamedTuple):
    w: np.ndarray
    weight: np.ndarray


class OnlyWeight:
    def __init__(self, weight: np.ndarray) -> None:
        self.weight = weight


ONE = np.ones(1, "float32")


def test_unknown_leaf_whose_name_begins_another_is_refused() -> None:
    inputs = PytreeInputs.from_input_names(["layer.weight"])
    assert inputs is not None
    with pytest.raises(InputError, match=r"the program has no input 'layer.w'"):
        inputs.flatten([Layer(ONE, ONE)], {})


def test_objects_of_user_classes_have_leaves_of_their_own() -> None:
    inputs = PytreeInputs.from_input_names(["layers[0].weight", "layers[1].weight"])
    assert inputs is not None
    assert inputs.flatten([[OnlyWeight(ONE), OnlyWeight(ONE)]], {}) == [ONE, ONE]
