"""Picks the rule in config files that answers a call without an entry."""

from __future__ import annotations

from typing import NamedTuple

from autotuned.configfiles import lookup
from autotuned.configfiles.policy import RULES, Policy, Verdict, Within
from autotuned.key.key import Key
from autotuned.key.sizes import Shape, shape_of
from autotuned.rules.rule import Rule
from autotuned.store import conditions
from autotuned.store.choice import Candidates, Choice, Look, Origin
from autotuned.store.conditions import BY_DEFAULT, Conditions


def look_rule(
    key: Key, candidates: Candidates, within: Within | None, needed: Conditions = BY_DEFAULT, strict: bool = False
) -> Look:
    """The choice of a rule whose bound is small enough, in the same context or one that the policies allow.

    `within` is the loss that the kernel allows; None leaves it to each folder's policy.
    """
    why, path = "", ""
    for offer in _rules(key):
        allowed = allowed_by(within, offer.held.policy, strict)
        if allowed is None:
            continue
        answer = offer.rule.answer(offer.values, allowed.bound)
        config = None if answer.config is None else candidates.get(offer.rule.identities[answer.config])
        lack = conditions.lack(offer.rule.conditions, needed)
        if answer.bound is None or answer.bound > allowed.bound:
            said = answer.words
        elif not offer.verdict.serves(strict):
            said = f"{offer.verdict.words}; policy {offer.verdict.action!r}"
        elif lack:
            said = f"measured {lack}"
        elif config is None:
            said = f"{answer.words}: its config is not among those of this call"
        else:
            elsewhere = ["its loss was measured there"] if offer.verdict.notes else []
            note = "; ".join([f"rule {answer.words}", *offer.verdict.notes, *elsewhere])
            loud = offer.verdict.action == "warn"
            choice = Choice(config, Origin.RULE, where=offer.held.path, note=note, loud=loud)
            return Look(choice.replace(conditions=offer.rule.conditions))
        why, path = (why, path) if why else (said, offer.held.path)
    return Look(None, "absent", f"{path}: {why}" if why else "")


def answering(key: Key, within: Within | None, strict: bool) -> tuple[RuleOffer, Within, int] | None:
    """The rule that `look_rule` picks, if its config is a candidate, with the allowed loss and its config's index."""
    for offer in _rules(key):
        allowed = allowed_by(within, offer.held.policy, strict)
        if allowed is not None and offer.verdict.serves(strict):
            place = offer.rule.config(offer.values, allowed.bound)
            if place is not None:
                return offer, allowed, place
    return None


def count(key: Key) -> int:
    """Number of rules for calls like this one."""
    return len(_rules(key))


def allowed_by(within: Within | None, policy: Policy, strict: bool) -> Within | None:
    """The loss that a rule may have, set by the kernel, else by the folder's policy; None for no rules."""
    said = within if within is not None else policy.get(RULES)
    return said if isinstance(said, Within) and (said.strict or not strict) else None


class RuleOffer(NamedTuple):
    """A rule for calls like this one, and the values of its sizes."""

    verdict: Verdict
    held: lookup.ShippedFile
    rule: Rule
    values: tuple[int, ...]


def _rules(key: Key) -> list[RuleOffer]:
    """The rules for a call, best context first, then in order of folders."""
    found: list[RuleOffer] = []
    shape: Shape | None = None
    for held in lookup.files_for(key):
        if not held.file.rules:
            continue
        shape = shape or shape_of(key.call)
        for context, rule in held.file.rules_of(shape.rest):
            verdict, values = held.judge(key, context), rule.values([size for _, size in shape.sizes])
            if verdict is not None and values is not None:
                found.append(RuleOffer(verdict, held, rule, values))
    return sorted(found, key=lambda offer: (offer.verdict.rank, offer.held.number))
