"""Finds the mutants of a script; each mutant changes a few bytes.

A change is left out if the parse tree shows that the change has no effect on behaviour: a change of
a message, of a final `return 0`, of quotes around a value that is always one word, or of `local` if
no caller has a variable with the same name.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from harness.mutate.commands import change_command, change_declaration
from harness.mutate.conditions import (
    change_arithmetic,
    change_case_item,
    change_for,
    change_if,
    change_list,
    change_negation,
    change_test,
    change_while,
)
from harness.mutate.operators import Operator
from harness.mutate.script import Script
from harness.mutate.steps import (
    change_check,
    change_function,
    change_pipeline,
    change_statement,
    change_subshell,
    change_sum,
)
from harness.mutate.words import (
    change_assignment,
    change_expansion,
    change_here_document,
    change_redirect,
    change_redirect_order,
    change_substitution,
)

if TYPE_CHECKING:
    from harness.mutate.change import Mutant, Plant


def mutants_of(text: bytes, *, messages: bool = False) -> list[Mutant]:
    """Return the mutants of a bash script, sorted by their position in the script.

    With `messages`, the mutants include changes of the texts that `echo` and log functions print.
    """
    script = Script(text, messages=messages)
    found: dict[bytes, Mutant] = {}
    for node in script.nodes:
        for plant in _PLANTS.get(node.type, ()):
            for change in plant(script, node):
                whole = change.operator in {Operator.COMMAND, Operator.ORDER, Operator.BACKGROUND}
                if script.in_message(change.anchor, whole=whole):
                    continue
                mutant = change.mutant(script)
                changed = mutant.apply(text)
                if changed != text:
                    found.setdefault(hashlib.sha256(changed).digest(), mutant)
    return sorted(found.values(), key=lambda each: (each.start, each.end, each.new))


_PLANTS: dict[str, tuple[Plant, ...]] = {
    "list": (change_list, change_statement),
    "negated_command": (change_negation, change_statement),
    "test_command": (change_test,),
    "binary_expression": (change_arithmetic,),
    "postfix_expression": (change_arithmetic,),
    "unary_expression": (change_arithmetic,),
    "if_statement": (change_if, change_check),
    "elif_clause": (change_if,),
    "while_statement": (change_while,),
    "for_statement": (change_for,),
    "case_item": (change_case_item,),
    "function_definition": (change_function,),
    "subshell": (change_subshell,),
    "command": (change_command, change_statement),
    "redirected_statement": (change_redirect_order, change_statement),
    "compound_statement": (change_sum,),
    "pipeline": (change_pipeline, change_statement),
    "unset_command": (change_statement,),
    "declaration_command": (change_declaration,),
    "variable_assignment": (change_assignment,),
    "expansion": (change_expansion,),
    "command_substitution": (change_substitution,),
    "file_redirect": (change_redirect,),
    "heredoc_body": (change_here_document,),
}
