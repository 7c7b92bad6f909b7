"""The table of digests, and the report of what differs."""

from __future__ import annotations

import digests
import pytest
import recorder
from replay_command import report
from replay_programs import GROUPS

pytestmark = pytest.mark.quick

MAX_BYTES = 300_000
"""Of the table: it is read by people, and each change of a kernel is a version of it."""


def test_table_is_written_as_it_was_read() -> None:
    text = digests.FILE.read_text()
    assert digests.write(digests.read(text), recorder.TARGETS) == text
    assert len(text) < MAX_BYTES


def test_every_group_of_programs_has_digests_for_every_target() -> None:
    table = digests.read(digests.FILE.read_text())
    groups = {name.partition("/")[0] for name in table}
    assert groups == set(GROUPS)
    for target in recorder.TARGETS:
        assert sum(bool(rows[target]) for rows in table.values()) > 50
    assert all(len(items) > 0 for rows in table.values() for items in rows.values() if items)


def test_changes_name_items_and_targets() -> None:
    before = {"vnni": {"add": "1", "bytecode": "2"}, "c": {"add": "1", "bytecode": "2"}}
    after = {"vnni": {"add": "9", "bytecode": "2"}, "c": {"add": "1", "relu": "3"}}
    assert digests.changed(before, before) == {}
    assert digests.changed(before, after) == {
        "add": ["vnni"], "bytecode": ["c"], "relu": ["c"],
    }  # fmt: skip


def test_diff_of_a_kernel_is_printed_once_for_targets_on_which_it_is_the_same() -> None:
    old, new = {"add": "for i\n  a"}, {"add": "for i\n  b"}
    before = {"relay/p": {"vnni": old, "c": old, "cuda": {"add": "x"}}}
    after = {"relay/p": {"vnni": new, "c": new, "cuda": {"add": "x"}}}
    assert report(before, before) == []
    assert report({}, after) == ["=== relay/p: new"]
    lines = report(before, after)
    assert lines == ["=== relay/p add: vnni, c", "@@ -1,2 +1,2 @@\n for i\n-  a\n+  b"]
    assert report(before, after, names_only=True) == ["relay/p add: vnni, c"]


def test_keys_of_the_cache_are_no_part_of_texts() -> None:
    names = recorder._short_names(["fused_add_0123456789ab", "fused_add_ba9876543210", "shape_f"])
    assert list(names.values()) == ["add", "add.2", "shape_f"]
    text = "fused_add_ba9876543210_kernel(fused_add_0123456789ab, fused_exp_0123456789cd_compute)"
    assert recorder._with_names(text, names) == "add.2_kernel(add, fused_exp_compute)"


def test_long_names_of_kernels_stay_apart() -> None:
    long = "fused_" + "_".join(["multiply"] * 9)
    names = recorder._short_names([f"{long}_0123456789ab", f"{long}_add_ba9876543210"])
    assert len(set(names.values())) == 2
    assert max(map(len, names.values())) < digests.COLUMN - 2
