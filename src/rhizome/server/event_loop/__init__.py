"""How the asyncio event loop drives the broker core, and what watches that nothing holds the loop.

`broker_driver` is the place to begin: Shell runs one turn per wake-up, and ClientProtocol is one
client's socket. `busy_poll` polls for a moment instead of sleeping. `stopwatch` times turns, and
the thread of `watchdog` reports what held the loop. All but `watchdog` are compiled.
"""
