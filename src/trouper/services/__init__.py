"""What a runtime offers to tools and hosts beside the turns: memory, files, background runs, questions, schedules, notifications.

places      where files, memory and secrets are
memory      what outlives sessions, on its own stream of the journal
desk        the services of one session, put together for its tools
runs        spawning, task records, schedules, as tools see them
questions   what a tool asks the user, until the host has answered
inbox       notifications for a host that takes them itself
views       records as plain data
session_side, overview   the same for hosts: what `Session` and `Runtime` offer
"""
