"""Adoption: an installation moves from a running RabbitMQ to Rhizome while applications go on.

`queue_direction` is the heart: which way the messages of a queue go is decided by who consumes it.
`definitions_rehearsal` finds what can't be taken over before anything is changed; `adoption` polls
both sides and runs at most one bridge per queue (`queue_crossing`); `adoption_state` keeps what a
restart must know; `move_verification` says what is left. May import bridge, management and what is
below them; who asks the HTTP APIs, and how, is the caller's business.
"""
