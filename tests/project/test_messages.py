"""What errors and warnings say: what was expected, what came, what to do; and no two of them for one thing."""

import re
from collections import Counter

from messages import KNOWN, Message, messages

COMPLETE = re.compile(r"expected\b.*(\bgot\b|\bfound\b|, and )", re.IGNORECASE)
# Whoever adds a message writes it as "expected ..., got ...", names what is known, or says here why it is another.
REVIEWED = {
    "the words are those of `supported.fault`, which say what was expected, what came and what to do": [
        "autotuned: {}"
    ],
    "Triton's own words, which programs compare": [
        "No valid autotuner configs after pruning: `{}`: pruner {} left none of {} configs for this call. Keep at least "
        "one, or give @autotune a default=.",
        "No valid autotuner configs after pruning. `early_config_prune` should return at least one config.",
        "Conflicting meta-parameters: {}. Make sure that you don't re-define auto-tuned symbols. (`{}`: its configs set "
        "them; leave them out of the call.)",
        "module 'autotuned' has no attribute {}",
    ],
    "two things given contradict each other: both are named, and which one to change": [
        "`{}`: rank {} chose {}, which is not a config of this call on this rank. Give every rank the same configs.",
        "`{}`: configs: two configs have the same values ({}) and different pre_hooks, so a stored choice could not say "
        "which one it is. Remove one, or give them different values.",
        "{} disagrees with the majority: {} of {} configs checked differ from it; no config was judged. Repair the "
        "reference or the kernel, or allow more with Check(..., tolerance=)",
        "the kernel writes {}, which the reference does not return",
        "{}.kwargs: sets {}, which the caller passes: a config cannot override it.",
        "`{}`: this is a plain callable and takes no grid. If it is a Triton kernel, put @triton.jit between @autotune "
        "and the function.",
        "@autotune: name={} is taken by a kernel with different source. Names must be unique: records and config files "
        "are found by them.",
        "`{}`: {} is in both {} and reset_to_zero. The first {}, the second overwrites it with zeros: name it in one.",
        "@autotune: this callable is tuned already. Keep one of the two decorators.",
        "`{}`: bucket: {} must be listed in key=[...]; without a list every exact shape is in the key and a bucket "
        "changes nothing.",
        "freeze: `{}` has reset_to_zero={}, and Triton's tuner zeroes nothing when it has one config. Zero these "
        "arguments before each launch, and decorate without it.",
        "`{}`: reset_to_zero names {}, which shares memory with argument {} in this call: zeroing it would destroy that "
        "input. Pass a separate tensor.",
        "argument {} was given twice, by position and by name.",
        "recorded kernel {}: {} is now {}. Record again, or give the kernel its old name with @autotune(name=...).",
        "Triton was imported before TRITON_INTERPRET=1 was set: set it before the first import.",
        "{} Set it in the environment.",
        "the targets no longer have case {}: their generators must yield the same cases whenever they are called.",
        "{}: a file holds one kernel on one device, and these are {}. Name a folder.",
        "{} is an input, and inputs are never written. Name another place.",
        "{} is there already. Name it as an input too, or name another place.",
        "{} matches several names: {}. Give a longer part.",
    ],
    "a state and not a mistake: what happened, and what to do or what follows": [
        "`{}` key {}: {} within {} s (rank {} of {}). Look at the log of that rank; autotuned.sync(timeout_s=...) waits "
        "longer, tuning with `autotuned tune` beforehand avoids the wait.",
        "the reference raised {}; no config was judged",
        "`{}`: expected at least one config that compiles and runs here; all {} failed. Add a config that fits, or give "
        "@autotune a default=.\n{}",
        "`{}`: not enough free memory to tune now ({}). Tune earlier, or name the written arguments in restore_value=.",
        "`{}`: {} the device in an error state ({}). Nothing can run on it in this process any more: restart the process; "
        "{} to blame.",
        "the measuring process ended {} times, and no config is to blame. Its output is above; isolate=False "
        "measures without such a process.",
        "a compile worker does not start",
        "a compile worker was killed, probably for lack of memory",
        "TimedOut: not compiled within {} s",
        "Crashed: the compiler ended {}",
        "integers cannot be read while a CUDA graph is captured; call the kernel once before the capture",
        "nothing is stored in {}: tune something first.",
        "nothing is tuned in {}, nor in config files: tune something first.",
        "--compare: nothing is tuned in {}: tune something first.",
        "there is no terminal to ask on: pass --yes",
        "nothing was deleted.",
        "none of the inputs can be read.",
        "there is nothing to measure: no cases for {}. {}",
        "there is nothing to measure: the generators of cases yield none. {}",
        "there is nothing to explain: no cases for {}. {}",
        "autotuned is not installed as files; call autotuned.install() in the program.",
    ],
    "something named is not there, or the system refuses it: its name, the reason, and what is there": [
        "no choice for {}. {}",
        "there is no file {}.{}",
        "kernel {} cannot be imported ({}). {}",
        "argument {} is missing. Expected: {}.{}",
        "`{}`: no key begins with {}. Its keys are {}.",
        "nothing can be written to {}: {}",
        "--out: nothing can be written to {}: {}",
        "binaries {}: {}. Move the file away, or rebuild it.",
        "binaries {}: {} Rebuild them: autotuned export --binaries.",
        "Triton Error [CUDA]: {}",
        "no kernel {}{}",
        "{} cannot be written: {}",
        "{}. Make room or name another folder, and run the same command again: it does not measure again what is in the "
        "cache folder.",
        "{} cannot be run: {}",
        "{}: no such command; type what you would type without autotuned.",
        "{} begins with a typographic dash; type --{}",
        "{}: field {} is {}.",
        "`{}`: configs: the callable returned none for this call; return at least one.",
    ],
    "a part of a message, which its maker completes": [
        "expected {}.{}",
        "`{}`: check: {}.",
        "Space: {}{}{}",
        "`{}`: do_bench for {}: {}",
        "`{}`: case: {}.",
        "`{}`: pruner {}: {}",
        "target {}: {}",
        "--out: {}",
        "--compare: {}.",
        "target {}: syntax error at {}: {}.",
        "rank {}, which searches, did not finish",
        "some rank did not call the kernel",
        "rank {} did not finish measuring",
    ],
    "caught by this package: nobody sees it, or only as the reason in another message": [
        "{}: expected a plain file.",
        "the record {} cannot be written",
        "the grid of this config was not recorded",
        "{} is immutable; use `replace`.",
        "code from a string has no file to read",
        "there is no source to read",
        "NVML has no {}",
        "NVML refuses {} with error {}",
        "`{}`: a value in its key has no JSON form: choices for it are kept in .cache only.",
    ],
}
KNOWN_TEXTS = {text for texts in REVIEWED.values() for text in texts}
# Warnings of which the consequence goes without saying: the reader waits, or sees what was said.
PLAIN = {
    "`{}` key {}: this rank may choose another config than the others.",
    "waiting for {}, which tunes the same key; lock file: {}",
    "waiting for {}, which tunes the same key; shared store: {}",
    "rank {} waits for {}.",
    "autotuned run: nothing is installed in this process",
}


def is_complete(message: Message) -> bool:
    """Whether a message says what was expected and what came, or which names there are."""
    # What came is an option, which typer puts before the text: "Invalid value for --devices: ...".
    is_told = message.maker == "BadParameter" and "expected" in message.text
    return is_told or bool(COMPLETE.search(message.text)) or message.text.endswith(KNOWN)


def test_the_collection_finds_what_is_raised_and_warned():
    makers = Counter(message.maker for message in messages())
    assert {"ConfigError", "fail", "warning", "BadParameter", "_call_error"} <= makers.keys()
    assert len(messages()) > 150


def test_an_error_says_what_was_expected_and_what_came():
    errors = [message for message in messages() if not message.is_warning and message.maker != "wrong"]
    wrong = {m.where: m.text for m in errors if not is_complete(m) and m.text not in KNOWN_TEXTS}
    assert not wrong, (
        f"expected 'expected ..., got ...', the names that are known, or an entry of REVIEWED with its reason; got {wrong}"
    )


def test_a_warning_says_what_was_seen_and_what_follows():
    warnings = [message for message in messages() if message.is_warning]
    assert {m.where: m.text for m in warnings if not says_what_follows(m.text) and m.text not in PLAIN} == {}


def says_what_follows(text):
    clauses = re.split(r"[;:.?)] ", re.sub(r"^(`\{\}`|[\w=]+): ", "", text))
    return len(clauses) > 1 or re.fullmatch(r"[\w. ]+", text)  # a name: what is said comes from elsewhere


def test_no_two_messages_are_for_one_thing():
    """Two that differ in what is filled in only would drift apart: they have a maker in common instead."""
    places: dict[str, list[str]] = {}
    for message in messages():
        if re.search(r"[a-z]{3}", message.text.replace("expected", "").replace("got", "")):
            places.setdefault(message.text, []).append(message.where)
    assert {text: found for text, found in places.items() if len(found) > 1} == {}


def test_what_was_reviewed_is_still_said():
    said = {message.text for message in messages()}
    assert sorted((KNOWN_TEXTS | PLAIN) - said) == []
