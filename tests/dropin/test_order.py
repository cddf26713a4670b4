"""A program's list of launched kernels, asked by one thread while another one writes it."""

from autotuned.dropin import order


class Crew:
    """Compilations during which another thread has noted the same key again, and not yet written it."""

    done, total = 0, 1

    def __init__(self, program):
        self.program, self.waited = program, []

    def wait_for(self, binary):
        self.waited.append(binary)
        self.program._entries.pop("key", None)


def test_a_key_that_another_thread_notes_meanwhile(tmp_path):
    program = order.Program(tmp_path / "program.json")
    program._entries["key"] = {"binary": "digest"}
    crews = program._crews = [Crew(program), Crew(program)]
    program.expect("key")
    assert [crew.waited for crew in crews] == [["digest"], ["digest"]]
