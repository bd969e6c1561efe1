"""Every control of the guards, switched off in turn: the attack it stands against must then succeed.

An attack that fails with the control off would prove nothing when it fails with the control on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
import pytest
import tool_attacks as attacks
from trio.testing import MockClock

from trouper.tools.guards import descriptors, fetch, names, processes, rooted, ssrf
from trouper.tools.guards.fence import Fence

Switch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def take_fences_away() -> Iterator[None]:
    """What a command that was not ended leaves standing, so that the tests leave nothing behind."""
    yield
    for directory in attacks.fences():
        Fence(directory).remove()


def _nothing(*_: object, **__: object) -> None:
    return None


def follow_links_to_directories(patch: pytest.MonkeyPatch) -> None:
    for module in (rooted, descriptors):
        patch.setattr(module, "OPEN_DIRECTORY", descriptors.OPEN_DIRECTORY & ~os.O_NOFOLLOW)


def follow_links_to_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(descriptors, "OPEN_FILE", descriptors.OPEN_FILE & ~os.O_NOFOLLOW)


def take_any_kind_of_file(patch: pytest.MonkeyPatch) -> None:
    for module in (rooted, descriptors):
        patch.setattr(module, "require_plain_file", _nothing)


def follow_links_and_take_any_kind(patch: pytest.MonkeyPatch) -> None:
    follow_links_to_files(patch)
    take_any_kind_of_file(patch)


def take_any_number_of_links(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(descriptors, "_require_single_name", _nothing)


def take_any_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(names, "check_component", _nothing)


def hand_paths_over_whole(patch: pytest.MonkeyPatch) -> None:
    """The plain way: the path goes to the kernel as it came."""
    patch.setattr(rooted, "parse_path", lambda path: (path,))


def delete_without_asking(patch: pytest.MonkeyPatch) -> None:
    def delete(self: rooted.RootedFiles, path: str, *, recursive: bool = False) -> int:
        with self._directory(names.parse_path(path)) as directory:
            gone = [name for name in os.listdir(directory) if descriptors.unlink_quietly(name, directory) is None]
        self.root.rmdir()
        return len(gone)

    patch.setattr(rooted.RootedFiles, "delete", delete)


def write_in_place(patch: pytest.MonkeyPatch) -> None:
    """No temporary file and no rename: the name is opened for writing."""

    def put(
        self: rooted.RootedFiles, parent: int, parts: tuple[str, ...], data: bytes, before: object
    ) -> rooted.Written:
        descriptor = os.open(parts[-1], os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=parent)
        os.write(descriptor, data)
        os.close(descriptor)
        return rooted.Written("", True, len(data), "")

    patch.setattr(rooted.RootedFiles, "_put", put)
    take_any_kind_of_file(patch)


def remove_trees_through_links(patch: pytest.MonkeyPatch) -> None:
    def remove(parent: int, parts: tuple[str, ...]) -> int:
        # `is_dir()` as it is by default: a link to a directory counts as one.
        descriptor = os.open(parts[-1], os.O_RDONLY, dir_fd=parent)
        with os.scandir(descriptor) as scan:
            for item in list(scan):
                if item.is_dir():
                    remove(descriptor, (*parts, item.name))
                else:
                    os.unlink(item.name, dir_fd=descriptor)
        os.close(descriptor)
        return 1

    patch.setattr(rooted, "remove_tree", remove)


def trust_any_root(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rooted, "require_private", _nothing)


def create_with_open_modes(patch: pytest.MonkeyPatch) -> None:
    for module in (rooted, descriptors):
        patch.setattr(module, "FILE_MODE", 0o666)
    patch.setattr(descriptors, "DIRECTORY_MODE", 0o777)
    patch.setattr(rooted, "require_private", _nothing)


def count_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rooted.RootedFiles, "_over", lambda *_: False)


def deny_no_network(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ssrf, "denial", _nothing)
    patch.setattr(ssrf, "_LOCAL_NAMES", ())


def unwrap_nothing(patch: pytest.MonkeyPatch) -> None:
    """The list of IPv4 networks alone, as if an address of the one kind could not hide in the other."""
    patch.setattr(ssrf, "_PUBLIC_V6", ssrf.ipaddress.IPv6Network("::/0"))
    patch.setattr(ssrf, "_NAT64", ssrf.ipaddress.IPv6Network("ff00::/8"))


def parse_leniently(patch: pytest.MonkeyPatch) -> None:
    from urllib.parse import urlsplit

    patch.setattr(attacks, "parse_url", lambda url: urlsplit(url).hostname)


def check_the_first_hop_only(patch: pytest.MonkeyPatch) -> None:
    hops: list[str] = []

    async def resolve(
        target: ssrf.Target, resolver: ssrf.Resolver, *, allow: Sequence[ssrf.Network] = ()
    ) -> tuple[ssrf.Address, ...]:
        hops.append(target.host)
        if len(hops) == 1:
            return await ssrf.resolve(target, resolver, allow=allow)
        return tuple(ssrf.ipaddress.ip_address(text) for text in await resolver(target.host, target.port))

    patch.setattr(fetch, "resolve", resolve)


def check_the_first_address_only(patch: pytest.MonkeyPatch) -> None:
    async def resolve(
        target: ssrf.Target, resolver: ssrf.Resolver, *, allow: Sequence[ssrf.Network] = ()
    ) -> tuple[ssrf.Address, ...]:
        found = await resolver(target.host, target.port)
        return (ssrf.check_address(found[0], allow=allow), *(ssrf.ipaddress.ip_address(text) for text in found[1:]))

    patch.setattr(fetch, "resolve", resolve)


def resolve_again_to_connect(patch: pytest.MonkeyPatch) -> None:
    """As every client does by default: the check asks the resolver, and the connection asks it once more."""
    real = ssrf.resolve

    async def resolve(
        target: ssrf.Target, resolver: ssrf.Resolver, *, allow: Sequence[ssrf.Network] = ()
    ) -> tuple[ssrf.Address, ...]:
        await real(target, resolver, allow=allow)
        return tuple(ssrf.ipaddress.ip_address(text) for text in await resolver(target.host, target.port))

    patch.setattr(fetch, "resolve", resolve)


def follow_any_number_of_redirects(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attacks, "FETCH_LIMITS", attrs.evolve(attacks.FETCH_LIMITS, redirects_max=12))


def use_a_client_that_looks_around(patch: pytest.MonkeyPatch) -> None:
    import httpx

    async def request(target: ssrf.Target, *_: object) -> fetch.Page:
        async with httpx.AsyncClient() as client:
            answer = await client.get(target.url)
        return fetch.Page(target.url, answer.status_code, "", answer.content, False, 0, ())

    patch.setattr(fetch, "_request", request)


def keep_all_that_is_decoded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attacks, "FETCH_LIMITS", attrs.evolve(attacks.FETCH_LIMITS, decoded_bytes_max=10**9))


def read_all_of_the_wire(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        attacks, "FETCH_LIMITS", attrs.evolve(attacks.FETCH_LIMITS, wire_bytes_max=10**9, decoded_bytes_max=10**9)
    )


def wait_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attacks, "FETCH_LIMITS", attrs.evolve(attacks.FETCH_LIMITS, deadline_s=float("inf")))


def pass_unknown_encodings(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fetch, "_decoder", lambda encoding: fetch._Identity())


def backtrack(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attacks, "BACKTRACKING", True)


def _without(*controls: str) -> Switch:
    def switch(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(processes, "CONTROLS", {**processes.CONTROLS, **dict.fromkeys(controls, False)})

    switch.__name__ = f"without_{'_and_'.join(controls)}"
    return switch


def look_for_no_strays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(processes, "_end_strays", _nothing)


def count_no_processes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attacks, "COMMAND_LIMITS", attrs.evolve(attacks.COMMAND_LIMITS, processes_max=0))


def keep_all_output(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attacks, "COMMAND_LIMITS", attrs.evolve(attacks.COMMAND_LIMITS, kept_bytes=10**9))


def pass_the_environment_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(processes, "scrubbed_environment", lambda home: dict(os.environ))


def set_no_limits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(processes, "_rlimits", lambda limits: {})


MATTERS: tuple[tuple[Switch, attacks.Attack], ...] = (
    (take_any_name, attacks.climb_with_dots),
    (take_any_name, attacks.go_to_a_sibling_with_the_same_prefix),
    (take_any_name, attacks.use_deceptive_names),
    (take_any_name, attacks.use_an_endless_name),
    (hand_paths_over_whole, attacks.name_an_absolute_path),
    (hand_paths_over_whole, attacks.climb_with_dots),
    (hand_paths_over_whole, attacks.use_a_nul_in_a_name),
    (follow_links_to_files, attacks.swap_a_file_between_check_and_open),
    (follow_links_and_take_any_kind, attacks.read_through_a_link),
    (follow_links_to_directories, attacks.read_through_a_linked_parent),
    (follow_links_to_directories, attacks.write_through_a_linked_parent),
    (follow_links_to_directories, attacks.swap_a_directory_between_check_and_open),
    (follow_links_to_directories, attacks.plant_a_link_in_place_of_the_root),
    (write_in_place, attacks.write_through_a_dangling_link),
    (take_any_number_of_links, attacks.read_a_hard_link),
    (take_any_kind_of_file, attacks.open_a_pipe),
    (delete_without_asking, attacks.delete_the_root),
    (remove_trees_through_links, attacks.delete_through_a_link),
    (trust_any_root, attacks.own_the_root_as_another_user),
    (trust_any_root, attacks.let_others_write_the_root),
    (create_with_open_modes, attacks.run_with_an_open_umask),
    (count_nothing, attacks.fill_the_disk),
    (count_nothing, attacks.make_entries_without_end),
    (deny_no_network, attacks.fetch_from_inside),
    (unwrap_nothing, attacks.embed_a_private_address),
    (parse_leniently, attacks.smuggle_a_host),
    (check_the_first_hop_only, attacks.redirect_to_the_inside),
    (resolve_again_to_connect, attacks.rebind_the_name),
    (check_the_first_address_only, attacks.mix_a_private_address_in),
    (follow_any_number_of_redirects, attacks.redirect_in_circles),
    (use_a_client_that_looks_around, attacks.route_through_an_ambient_proxy),
    (keep_all_that_is_decoded, attacks.send_a_compression_bomb),
    (read_all_of_the_wire, attacks.send_chunks_without_end),
    (pass_unknown_encodings, attacks.nest_encodings),
    (backtrack, attacks.hang_a_search),
    # Either of the two finds it.
    (_without("subreaper", "fence"), attacks.leave_a_daemon),
    (_without("fence"), attacks.kill_the_warden_and_hide),
    (_without("kill_tree"), attacks.ignore_the_request_to_stop),
    (look_for_no_strays, attacks.kill_the_warden),
    (count_no_processes, attacks.breed_processes),
    (keep_all_output, attacks.print_without_end),
    (pass_the_environment_on, attacks.read_the_keys_of_the_host),
    (set_no_limits, attacks.write_a_huge_file),
    (_without("no_new_privs"), attacks.gain_privileges),
)


@pytest.mark.parametrize(
    ("switch_off", "attack"), MATTERS, ids=[f"{switch.__name__}-{attack.__name__}" for switch, attack in MATTERS]
)
async def test_attack_succeeds_without_its_control(
    switch_off: Switch, attack: attacks.Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch_off(monkeypatch)
    with pytest.raises(attacks.Breached):
        await attack(tmp_path)


async def test_slow_server_is_waited_for_without_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    wait_for_ever(monkeypatch)
    with pytest.raises(attacks.Breached):
        await attacks.drip_slowly(tmp_path)
