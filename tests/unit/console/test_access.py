"""Roles and rights."""

from __future__ import annotations

import pytest

from postroad.console.access import Right, Role, User, may


def test_each_role_has_the_rights_of_the_one_before() -> None:
    rights = [{right for right in Right if may(User("a", role), right)} for role in Role]
    assert rights == [
        {Right.VIEW},
        {Right.VIEW, Right.OPERATE},
        {Right.VIEW, Right.OPERATE, Right.ADMINISTER},
    ]


@pytest.mark.parametrize("role", Role)
def test_no_role_may_read_payloads_by_itself(role: Role) -> None:
    assert not may(User("a", role), Right.READ_PAYLOADS)
    assert may(User("a", role, payloads=True), Right.READ_PAYLOADS)


def test_a_user_has_a_name_and_a_role() -> None:
    assert User("anna", "admin").role is Role.ADMIN  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name is '  '; it must be a text"):
        User("  ", Role.VIEWER)
    with pytest.raises(ValueError, match="role is 'root'; it must be viewer, operator, admin"):
        User("anna", "root")  # type: ignore[arg-type]
