"""What must hold in a simulation: each checker raises a Violation the moment it sees it broken.

checker has the base class and Watch, which hands events to all checkers. message_history,
stream_history, queue_lease_history and fault_timeline record what happened; the other modules
look it up there and judge one kind of promise each, with what excuses it.

It imports world, events, apps (the topology) and brokers (the contents). Begin with checker, then
loss_and_duplicate_checkers.
"""
