"""One AMQP connection, from the protocol header to its end.

frame_reader.py has the hot loop over received bytes; control_frames.py takes the frames that are
not on the fast path. connection.py, what they work on, knows neither. What is to be written
collects in an outbox until the turn ends.
session_resume.py keeps what a lost client held until it comes back. Imports access/, channel/
and publishing/. Begin with connection_states.py, then connection.py.
"""
