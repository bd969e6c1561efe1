"""security.md, the rows that concern tools: every attack fails. That each fails because of its control is shown in test_controls_matter.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import tool_attacks as attacks
from trio.testing import MockClock

FILE_ATTACKS = (
    attacks.climb_with_dots,
    attacks.go_to_a_sibling_with_the_same_prefix,
    attacks.name_an_absolute_path,
    attacks.read_through_a_link,
    attacks.read_through_a_linked_parent,
    attacks.write_through_a_linked_parent,
    attacks.write_through_a_dangling_link,
    attacks.swap_a_file_between_check_and_open,
    attacks.swap_a_directory_between_check_and_open,
    attacks.read_a_hard_link,
    attacks.open_a_pipe,
    attacks.delete_the_root,
    attacks.delete_through_a_link,
    attacks.use_deceptive_names,
    attacks.use_a_nul_in_a_name,
    attacks.use_an_endless_name,
    attacks.plant_a_link_in_place_of_the_root,
    attacks.own_the_root_as_another_user,
    attacks.let_others_write_the_root,
    attacks.run_with_an_open_umask,
    attacks.fill_the_disk,
    attacks.make_entries_without_end,
)
WEB_ATTACKS = (
    attacks.fetch_from_inside,
    attacks.embed_a_private_address,
    attacks.smuggle_a_host,
    attacks.redirect_to_the_inside,
    attacks.rebind_the_name,
    attacks.mix_a_private_address_in,
    attacks.redirect_in_circles,
    attacks.route_through_an_ambient_proxy,
    attacks.send_a_compression_bomb,
    attacks.send_chunks_without_end,
    attacks.nest_encodings,
)
PROCESS_ATTACKS = (
    attacks.hang_a_search,
    attacks.leave_a_daemon,
    attacks.ignore_the_request_to_stop,
    attacks.kill_the_warden,
    attacks.kill_the_warden_and_hide,
    attacks.breed_processes,
    attacks.print_without_end,
    attacks.read_the_keys_of_the_host,
    attacks.write_a_huge_file,
    attacks.gain_privileges,
)


@pytest.mark.parametrize("attack", FILE_ATTACKS, ids=lambda attack: attack.__name__)
async def test_attack_on_files_fails(attack: attacks.Attack, tmp_path: Path) -> None:
    """T17; security.md, rows Paths, Names, Files."""
    await attack(tmp_path)


@pytest.mark.parametrize("attack", WEB_ATTACKS, ids=lambda attack: attack.__name__)
async def test_attack_through_the_web_fails(attack: attacks.Attack, tmp_path: Path) -> None:
    """T18; security.md, rows SSRF and Response bombs."""
    await attack(tmp_path)


async def test_slow_server_meets_the_deadline(tmp_path: Path, autojump_clock: MockClock) -> None:
    """T18; security.md, row Response bombs: slow drip."""
    await attacks.drip_slowly(tmp_path)


@pytest.mark.parametrize("attack", PROCESS_ATTACKS, ids=lambda attack: attack.__name__)
async def test_attack_with_processes_and_patterns_fails(attack: attacks.Attack, tmp_path: Path) -> None:
    """T13, T19; security.md, rows Regex and Processes."""
    await attack(tmp_path)
