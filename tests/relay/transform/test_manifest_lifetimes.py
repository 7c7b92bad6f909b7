"""ManifestLifetimes: variables are killed after their last use."""

import pytest
from pass_checks import check

from ekiden.relay.transform import ManifestLifetimes

pytestmark = pytest.mark.quick

F = "def @f(%x: float32) -> float32 { %x }\n"


def test_variable_dies_after_its_last_use() -> None:
    check(
        ManifestLifetimes(),
        F + "def @main(%x: float32) { let %y = @f(%x); let %z = @f(%y); let %w = @f(%z); %w }",
        F
        + """def @main(%x: float32) {
          let %y = @f(%x); let %z = @f(%y); let %a = memory.kill(%y);
          let %w = @f(%z); let %b = memory.kill(%z); %w }""",
    )


def test_parameters_and_the_result_live() -> None:
    text = F + "def @main(%x: float32) { let %y = @f(%x); %y }"
    check(ManifestLifetimes(), text, text)


def test_variable_that_is_never_used_dies_at_once() -> None:
    check(
        ManifestLifetimes(),
        F + "def @main(%x: float32) { let %y = @f(%x); let %z = @f(%x); %z }",
        F
        + """def @main(%x: float32) {
          let %y = @f(%x); let %a = memory.kill(%y); let %z = @f(%x); %z }""",
    )


def test_use_in_a_branch_keeps_it_until_after_the_branch() -> None:
    check(
        ManifestLifetimes(),
        F
        + """def @main(%c: bool, %x: float32) {
          let %y = @f(%x); let %r = if (%c) { %y } else { %x }; %r }""",
        F
        + """def @main(%c: bool, %x: float32) {
          let %y = @f(%x); let %r = if (%c) { %y } else { %x }; let %a = memory.kill(%y); %r }""",
    )


def test_variables_of_a_branch_die_in_it() -> None:
    check(
        ManifestLifetimes(),
        F
        + """def @main(%c: bool, %x: float32) {
          let %r = if (%c) { let %y = @f(%x); let %z = @f(%y); %z } else { %x }; %r }""",
        F
        + """def @main(%c: bool, %x: float32) {
          let %r = if (%c) {
            let %y = @f(%x); let %z = @f(%y); let %a = memory.kill(%y); %z } else { %x };
          %r }""",
    )


def test_fields_of_a_result_live() -> None:
    text = (
        F
        + """def @main(%x: float32) {
      let %y = @f(%x); let %z = @f(%x); let %t = (%y, %z); %t }"""
    )
    after = text.replace("%t }", "let %a = memory.kill(%y); let %b = memory.kill(%z); %t }")
    check(ManifestLifetimes(), text, after)
