"""Elections (R3, R5): candidates for the role of root, and the answers to them.

A ``Candidacy`` goes through two phases:

    asking  -> voting    all primaries that it sees say yes, and they are E; or, once its patience
                         is over, E say yes whatever the others' reason
    voting  -> (root)    E votes, its own durable
    voting  -> asking    no E votes within the patience; after a random pause
    any     -> (gone)    a root is heard, or a higher term

``VoteResponder`` answers candidates. In the pre-vote a broker says no while it keeps to a root's
lease, to a log that is behind, while it is starting, and to a candidate that it outranks; the
latter two only as long as the candidate is patient. In the vote proper the first candidate with a
complete log gets the vote.
"""

from __future__ import annotations

from typing import Final

from rhizome.cluster.consensus.consensus_messages import PreVote, PreVoteAnswer, Vote, VoteAnswer
from rhizome.cluster.consensus.node_state import NodeState
from rhizome.cluster.consensus.settings import NEVER_MS

YES: Final = ""
SECONDARY_NEVER_VOTES: Final = "a secondary never votes"
STARTING: Final = "starting"
ROOT_LIVES: Final = "the root lives"
OLD_TERM: Final = "the term is old"
LOG_BEHIND: Final = "the log is behind mine"
OUTRANKED: Final = "I rank better"
VOTED_ALREADY: Final = "voted already in this term"

ROUNDS_PER_PATIENCE: Final = 4
"""How often a candidate repeats its question within its patience."""

DEFEATS_COUNTED_MAX: Final = 3
"""After this many campaigns without enough votes the wait for votes is not doubled any more."""


def rank(
    last_term: int, last_index: int, preference: int, seniority: int, name: str
) -> tuple[int, int, int, int, str]:
    """The rank by which candidates are compared; the lowest is the best (R5)."""
    return (-last_term, -last_index, -preference, seniority, name)


class Candidacy:
    """A candidacy for the role of root. ``won`` once it is over and successful."""

    def __init__(self, state: NodeState, silent: str = "", consent: int = 0) -> None:
        self.state = state
        self.silent = silent
        """The root that was lost: it may be linked, but nobody waits for its answer."""
        self.consent = consent
        self.voting = False
        self.won = False
        self.round = 0
        self.answers: dict[str, PreVoteAnswer] = {}
        self.votes: dict[str, bool] = {}
        self.own_vote_token = 0
        self.defeats = 0
        self._excused = False
        self.next_ms = state.now_ms
        self.patience_over_ms = state.now_ms
        self.outranked_over_ms = state.now_ms
        self._begin_patience()
        if consent or not state.rules.pre_vote:
            self._campaign()
        else:
            self._ask()

    def deadline_ms(self) -> int:
        if not self.voting and not self._may_be_elected():
            return NEVER_MS
        return self.next_ms

    def tick(self) -> None:
        if self.state.now_ms < self.next_ms:
            return
        if self.voting:
            self._give_up()
        elif self._may_be_elected():
            self._ask()

    def excuse(self) -> None:
        """This broker stood still: answers may be there and not read yet. Once per question."""
        if not self._excused:
            self._excused = True
            heard_by_ms = self.state.heard_by_ms()
            self.next_ms = max(self.next_ms, heard_by_ms)
            self.patience_over_ms = max(self.patience_over_ms, heard_by_ms)
            self.outranked_over_ms = max(self.outranked_over_ms, heard_by_ms)

    def peer_changed(self, name: str) -> None:
        """A link came up or went down: what the peer said before counts no more."""
        self.answers.pop(name, None)
        self.votes.pop(name, None)
        if not self.voting:
            self._send_question([name] if name in self.state.linked_voters() else [])
            self._decide()

    def pre_vote_answered(self, sender: str, answer: PreVoteAnswer) -> None:
        if not self.voting:
            self.answers[sender] = answer
            self._decide()

    def vote_answered(self, sender: str, answer: VoteAnswer) -> None:
        if self.voting and answer.term == self.state.term and answer.yes:
            self.votes[sender] = True
            self._count()

    def written(self, token: int) -> None:
        """The broker's own vote counts when it is durable (R3). The others are asked only then, and
        have their time from there."""
        me = self.state.me.name
        if self.voting and token >= self.own_vote_token and me not in self.votes:
            self.votes[me] = True
            self._await_votes()
            self._count()

    def waits_for(self) -> str:
        if self.voting:
            return f"votes of {', '.join(self._missing(self.votes)) or 'nobody'}"
        if not self._may_be_elected():
            too_few = "links to more primaries: these are too few to elect a root"
            return "; ".join([too_few, *self.state.uncounted()])
        said_no = [f"{n}: {a.reason}" for n, a in self.answers.items() if not a.yes]
        if said_no:
            return "pre-votes; no from " + ", ".join(said_no)
        return f"pre-votes of {', '.join(self._missing(self.answers)) or 'nobody'}"

    def _missing(self, heard: dict[str, bool] | dict[str, PreVoteAnswer]) -> list[str]:
        return [name for name in self.state.linked_voters() if name not in heard]

    def _may_be_elected(self) -> bool:
        """Whether the primaries that this one sees are enough, if all say yes."""
        yes = dict.fromkeys([self.state.me.name, *self.state.linked_voters()], True)
        return self._elects(yes)

    def _elects(self, yes: dict[str, bool]) -> bool:
        state = self.state
        return state.electorate.elected(yes, state.counts, state.rules)

    @property
    def _impatient(self) -> bool:
        outranked = any(answer.reason == OUTRANKED for answer in self.answers.values())
        over_ms = self.outranked_over_ms if outranked else self.patience_over_ms
        return self.state.now_ms >= over_ms

    @property
    def _awaits_starting(self) -> bool:
        state = self.state
        return state.now_ms < state.started_ms + state.settings.startup_patience_ms

    def _ask(self) -> None:
        state = self.state
        self.round += 1
        self._excused = False
        if self._blocked_by_starters():
            self._begin_patience()
        self._send_question(state.linked_voters())
        step_ms = max(1, state.settings.election_patience_ms // ROUNDS_PER_PATIENCE)
        self.next_ms = state.now_ms + step_ms
        if self._impatient:
            self.next_ms += state.chance.randrange(state.settings.election_patience_ms)
        self._decide()

    def _send_question(self, names: list[str]) -> None:
        state = self.state
        question = PreVote(
            term=state.term,
            round=self.round,
            last_term=state.persistent.log.last_term,
            last_index=state.persistent.log.last_index,
            preference=state.rank_preference(),
            seniority=state.seniority(),
            impatient=self._impatient,
            awaits_starting=self._awaits_starting,
        )
        for name in names:
            state.send(name, question)

    def _decide(self) -> None:
        """Campaign, if the answers allow it."""
        state = self.state
        awaited = [n for n in state.linked_voters() if n != self.silent or n in self.answers]
        yes = {state.me.name: True}
        for name in awaited:
            if name in self.answers and self.answers[name].yes:
                yes[name] = True
        if not self._elects(yes) or self._blocked_by_starters():
            return
        if self._impatient or all(name in yes for name in awaited):
            self._campaign()

    def _blocked_by_starters(self) -> bool:
        """Whether a broker that is starting, or is listed and hasn't come yet, is waited for."""
        state = self.state
        if not self._awaits_starting:
            return False
        if any(answer.reason == STARTING for answer in self.answers.values()):
            return True
        newest = state.electorate.newest
        if not newest.founding:
            return False
        return any(n != state.me.name and not state.is_up(n) for n in newest.names())

    def _campaign(self) -> None:
        state = self.state
        self.voting = True
        self._excused = False
        self.votes = {}
        state.persistent.enter_term(state.term + 1, state.me.uuid)
        question = Vote(
            term=state.term,
            last_term=state.persistent.log.last_term,
            last_index=state.persistent.log.last_index,
            consent=self.consent,
        )
        self.consent = 0
        for name in state.linked_voters():
            state.send(name, question)
        self._await_votes()
        self.own_vote_token = state.persistent.token_to_wait_for()
        if not state.rules.vote_durable:
            self.written(self.own_vote_token)

    def _await_votes(self) -> None:
        state = self.state
        patience_ms = state.settings.election_patience_ms << min(self.defeats, DEFEATS_COUNTED_MAX)
        self.next_ms = state.now_ms + patience_ms + state.chance.randrange(patience_ms)

    def _count(self) -> None:
        self.won = self.won or self._elects(self.votes)

    def _give_up(self) -> None:
        """Nobody won this term, as far as this broker knows. Ask again, and wait longer the next
        time: votes must be on disk, and a disk may be slower than the patience."""
        self.voting = False
        self.defeats += 1
        self.answers = {}
        self._begin_patience()
        self._ask()

    def _begin_patience(self) -> None:
        """Begin the patience. A candidate that sees a broker of better rank is patient for longer:
        that one goes first.

        Waiting for starters is another patience; this one begins when that is over.
        """
        state = self.state
        patience_ms = state.settings.election_patience_ms
        self.patience_over_ms = state.now_ms + patience_ms
        self.outranked_over_ms = self.patience_over_ms + 1 + state.chance.randrange(patience_ms)
        self.next_ms = state.now_ms


class VoteResponder:
    """Answers candidates. Keeps to the leases of roots that it has answered (R9).

    Invariant: until ``honours_ms`` no vote and no pre-vote of this broker helps to replace a root.
    """

    def __init__(self, state: NodeState) -> None:
        self.state = state
        self.honours_ms = 0
        self.in_office = False
        self._excused = False
        if state.term > 0:
            # This broker has forgotten what it promised before it restarted.
            self.honour(state.settings.root_lease_ms)

    def honour(self, root_lease_ms: int) -> None:
        until_ms = self.state.now_ms + self.state.settings.honoured_ms(root_lease_ms)
        self.honours_ms = max(self.honours_ms, until_ms)
        self._excused = False

    def excuse(self) -> None:
        """This broker stood still: the root may have spoken meanwhile, and isn't heard yet. Once,
        until the root is heard; keeping to its lease for longer breaks no rule."""
        if not self._excused:
            self._excused = True
            self.honours_ms = max(self.honours_ms, self.state.heard_by_ms())

    def release(self) -> None:
        """The root itself has given its lease up."""
        self.honours_ms = min(self.honours_ms, self.state.now_ms)

    def is_bound(self) -> bool:
        """Whether a root that was heard may still hold its lease."""
        return self.state.now_ms < self.honours_ms

    def honours(self) -> bool:
        return self.is_bound() and self.state.rules.lease_honoured

    def answer_pre_vote(self, sender: str, question: PreVote, i_stand: bool) -> None:
        """Answer a pre-vote. ``i_stand``: this broker could be elected itself, so ranks matter."""
        reason = self._against(sender, question, i_stand)
        answer = PreVoteAnswer(self.state.term, question.round, reason == YES, reason)
        self.state.send(sender, answer)

    def _against(self, sender: str, question: PreVote, i_stand: bool) -> str:
        state = self.state
        log = state.persistent.log
        if not state.me.votes() and state.rules.secondaries_never_vote:
            return SECONDARY_NEVER_VOTES
        if self.honours() or self.in_office:
            return ROOT_LIVES
        if question.term < state.term:
            return OLD_TERM
        if self._is_behind(question.last_term, question.last_index):
            return LOG_BEHIND
        if state.starting and question.awaits_starting:
            return STARTING
        if question.impatient or not i_stand:
            return YES
        mine = rank(
            log.last_term, log.last_index, state.rank_preference(), state.seniority(), state.me.name
        )
        theirs = rank(
            question.last_term,
            question.last_index,
            question.preference,
            question.seniority,
            sender,
        )
        return OUTRANKED if mine < theirs else YES

    def refuses_term(self, sender: str, question: Vote) -> bool:
        """Whether a vote is refused before its term is even looked at: a secondary's, or one that
        would break a root's lease. The root's own consent lifts its lease."""
        state = self.state
        reason = YES
        if not state.me.votes() and state.rules.secondaries_never_vote:
            reason = SECONDARY_NEVER_VOTES
        elif self.honours() and not (question.consent and question.consent == state.term):
            reason = ROOT_LIVES
        elif question.term < state.term:
            reason = OLD_TERM
        if reason:
            state.send(sender, VoteAnswer(state.term, False, reason))
        return reason != YES

    def answer_vote(self, sender: str, question: Vote) -> bool:
        """Answer in the question's term, which is this broker's by now; True for a yes."""
        state = self.state
        candidate = state.peers[sender].hello.uuid
        reason = YES
        if state.persistent.vote not in ("", candidate):
            reason = VOTED_ALREADY
        elif self._is_behind(question.last_term, question.last_index):
            reason = LOG_BEHIND
        else:
            if state.persistent.vote != candidate:
                state.persistent.enter_term(state.term, candidate)
        answer = VoteAnswer(state.term, reason == YES, reason)
        if state.rules.vote_durable:
            state.send_durable(sender, answer)
        else:
            state.send(sender, answer)
        return reason == YES

    def _is_behind(self, last_term: int, last_index: int) -> bool:
        log = self.state.persistent.log
        if not self.state.rules.log_completeness_in_votes:
            return False
        return (last_term, last_index) < (log.last_term, log.last_index)
