"""What goes wrong in a simulation, drawn from the seed.

fault_schedule chooses kinds of faults and their times, and undoes all of them at the end of the
storm. event_triggered_faults ("ambushes") wait for an event and strike at that moment.
messages_scenario_faults strike applications, journals and homes. broken_rules makes brokers break a
rule on purpose.

Begin with fault_schedule.
"""
