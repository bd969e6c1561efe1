"""What is kept on disk beside the journal: profiles, the readable view of the memory, and the small stores of sessions.

Only secrets, key-value pairs and the choice of a profile live here alone. The view of the memory is made from the journal and can be deleted at any time.
"""
