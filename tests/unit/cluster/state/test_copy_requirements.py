"""Copy requirements are counted, and the counts say what a walk over the queues would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rhizome.broker.metadata.declare_and_consume_arguments import QueueArguments
from rhizome.broker.metadata.queue_policy_user_records import QueueDefinition
from rhizome.cluster.state.copy_requirements import CopyRequirements

COPIES = st.sampled_from([-1, 1, 2, 3])
STEPS = st.lists(
    st.tuples(st.booleans(), st.integers(1, 4), st.integers(1, 2), COPIES, COPIES), max_size=40
)


def definition(number: int, group: int, copies: int, min_copies: int) -> QueueDefinition:
    options = QueueArguments()
    options.copies, options.min_copies = copies, min_copies
    return QueueDefinition(
        number, "/", f"q{number}", True, False, "", {}, options, options, group=group
    )


def walked(queues: list[QueueDefinition], copies: int, min_copies: int) -> tuple[int, int]:
    asked = [each.options for each in queues]
    least = max(
        [int(each.min_copies) if each.min_copies > 0 else min_copies for each in asked],
        default=min_copies,
    )
    most = max([int(each.copies) if each.copies > 0 else copies for each in asked], default=copies)
    return max(most, least), least


@given(STEPS, st.integers(1, 3), st.integers(1, 3))
def test_counts_say_what_a_walk_over_the_queues_would(
    steps: list[tuple[bool, int, int, int, int]], copies: int, min_copies: int
) -> None:
    requirements = CopyRequirements()
    there: dict[tuple[int, int], QueueDefinition] = {}
    for stays, number, group, asked, least in steps:
        if stays:
            there[group, number] = definition(number, group, asked, least)
            requirements.put(there[group, number])
        elif (group, number) in there:
            requirements.drop(there.pop((group, number)))
        for each in (1, 2):
            queues = [found for (its, _), found in there.items() if its == each]
            assert requirements.count(each) == len(queues)
            assert requirements.copies(each, copies, min_copies) == walked(
                queues, copies, min_copies
            )
