"""The guards: what stands between the model's arguments and the machine.

    rooted          files of one session, and nothing beyond them (T17)
    ssrf            which hosts and addresses may be asked for a page (T18)
    fetch           one GET or HEAD to a checked address, with every size and time bounded (T18)
    linear_grep     patterns that cannot hang (T19)
    processes       a command in a group of its own, that leaves nothing behind (T13)

Each is usable by itself: it takes plain values, knows no tool and no session, and raises `Refused`, whose message the model may read.
"""
