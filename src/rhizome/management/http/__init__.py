"""From a socket to a handler and back: HTTP without any resource of the API in it.

`endpoint` is the place to begin: a table of paths, methods and rights, and how a request is run.
Before it come `http_connection_limits`, `http_timeouts`, `request_filter` and `auth` (with the
console's sessions in `console_sessions`). A handler gets an `api_call`, with a `json_body` if it
wants one, and answers with `json_responses`. `cooperative_yield` keeps long requests from holding
up messages, `request_step_timer` times them, `caller_visible_totals` says which sums a caller may
see.
"""
