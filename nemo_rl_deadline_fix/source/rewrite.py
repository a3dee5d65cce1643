"""Write the fix into a file's text, or take it out again, function by function.

Only the functions that a site names are parsed and printed anew, by LibCST, which keeps every character
that it is not told to change. The rest of the text is not touched at all.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Sequence

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from nemo_rl_deadline_fix.errors import UnsupportedTargetError
from nemo_rl_deadline_fix.registry import DEFAULT_HOLDER
from nemo_rl_deadline_fix.source.edits import Edit, Insert, PassHolder, TakeHolder, edits, not_ours
from nemo_rl_deadline_fix.source.reading import Source
from nemo_rl_deadline_fix.source.sites import Rule, Site, State

WIDTH = 88
"""Columns of a line in NeMo RL's formatter."""


def with_fix(source: Source, sites: Iterable[Site], rules: Collection[Rule]) -> str:
    """The file's text with the fix at every affected site of these rules."""
    return _rewritten(source, sites, rules, State.AFFECTED)


def without_fix(source: Source, sites: Iterable[Site], rules: Collection[Rule]) -> str:
    """The file's text without what `with_fix` puts in.

    Raises:
        UnsupportedTargetError: The fix is there in another form.
    """
    return _rewritten(source, sites, rules, State.FIXED)


def _rewritten(source: Source, sites: Iterable[Site], rules: Collection[Rule], state: State) -> str:
    planned: dict[tuple[int, int], list[Edit]] = {}
    for site in sites:
        if site.rule in rules and site.state is state and site.file == source.path:
            for span, edit in edits(source, site, taken_out=state is State.FIXED):
                if edit not in planned.setdefault(span, []):
                    planned[span].append(edit)
    lines = list(source.lines)
    for (first, last), wanted in sorted(planned.items(), reverse=True):
        old = "".join(lines[first - 1 : last])
        new = _function_text(old, first, wanted, taken_out=state is State.FIXED, source=source)
        lines[first - 1 : last] = [new]
    return "".join(lines)


def _function_text(old: str, first: int, wanted: Sequence[Edit], *, taken_out: bool, source: Source) -> str:
    # A method cannot stand alone: it gets a class around it, which is cut off again.
    if re.search("\r(?!\n)", old):
        raise UnsupportedTargetError(
            f"cannot change {source.path}:{first}",
            found="lines that end in a lone carriage return",
            supported="LF or CRLF",
            advice="convert the file's line ends first; nothing was changed",
        )
    newline = "\r\n" if "\r\n" in old else "\n"
    around = f"class _:{newline}" if old[:1] in " \t" else ""
    shift = first - (2 if around else 1)
    try:
        module = cst.parse_module(around + old)
    except cst.ParserSyntaxError as error:
        raise UnsupportedTargetError(
            f"cannot change {source.path}:{first}",
            found=f"syntax that LibCST does not know: {error.message}",
            advice="update libcst, or make the change by hand",
        ) from None
    editor = _Editor(wanted, shift, taken_out, source)
    text = MetadataWrapper(module, unsafe_skip_copy=True).visit(editor).code
    for edit in wanted:
        if edit not in editor.done:
            raise (
                not_ours(source, edit.line)
                if taken_out
                else UnsupportedTargetError(
                    f"cannot change {source.path}:{edit.line}",
                    found="a statement that does not begin its line",
                )
            )
    return text[len(around) :]


class _Editor(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, wanted: Sequence[Edit], shift: int, taken_out: bool, source: Source) -> None:
        super().__init__()
        self._inserts = {edit.line - shift: edit for edit in wanted if isinstance(edit, Insert)}
        self._takes = {edit.line - shift: edit for edit in wanted if isinstance(edit, TakeHolder)}
        self._passes = {edit.line - shift: edit for edit in wanted if isinstance(edit, PassHolder)}
        self._taken_out = taken_out
        self._source = source
        self.done: set[Edit] = set()

    def _line(self, node: cst.CSTNode) -> int:
        return int(self.get_metadata(PositionProvider, node).start.line)

    def leave_FunctionDef(  # noqa: N802
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        edit = self._takes.get(self._line(original_node.name))
        if edit is None:
            return updated_node
        self.done.add(edit)
        parameters = updated_node.params
        if self._taken_out:
            return updated_node.with_changes(params=self._without_holder(parameters, edit))
        last = parameters.params[-1]
        comma = last.comma
        holder = cst.Param(
            cst.Name("holder"),
            annotation=cst.Annotation(cst.Name("str")),
            default=cst.SimpleString(f'"{DEFAULT_HOLDER}"'),
            comma=comma,
        )
        between = updated_node.whitespace_before_params
        spread = isinstance(comma, cst.Comma) and isinstance(between, cst.ParenthesizedWhitespace)
        gap = between if spread else cst.SimpleWhitespace(" ")
        last = last.with_changes(comma=cst.Comma(whitespace_after=gap))
        return updated_node.with_changes(
            params=parameters.with_changes(params=[*parameters.params[:-1], last, holder])
        )

    def _without_holder(self, parameters: cst.Parameters, edit: Edit) -> cst.Parameters:
        *rest, holder = parameters.params
        default = holder.default
        ours = isinstance(default, cst.SimpleString) and default.value == f'"{DEFAULT_HOLDER}"'
        if not (rest and ours and holder.name.value == "holder"):
            raise not_ours(self._source, edit.line)
        last = rest[-1].with_changes(comma=holder.comma)
        return parameters.with_changes(params=[*rest[:-1], last])

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> bool:  # noqa: N802
        # Nothing below a statement is of interest; most of the time would be spent there.
        return False

    def leave_SimpleStatementLine(  # noqa: N802
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        edit = self._passes.get(self._line(original_node))
        statement = updated_node.body[0]
        if edit is None or not isinstance(statement, cst.Expr) or not isinstance(statement.value, cst.Call):
            return updated_node
        self.done.add(edit)
        arguments = [] if self._taken_out else [cst.Arg(cst.Name("holder"))]
        call = statement.value.with_changes(args=arguments)
        return updated_node.with_changes(body=[statement.with_changes(value=call), *updated_node.body[1:]])

    def leave_IndentedBlock(  # noqa: N802
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body: list[cst.BaseStatement] = []
        rest = list(zip(original_node.body, updated_node.body, strict=True))
        while rest:
            original, updated = rest.pop(0)
            edit = self._inserts.get(self._line(original))
            if edit is None:
                body.append(updated)
                continue
            self.done.add(edit)
            column = int(self.get_metadata(PositionProvider, original).start.column)
            new = _statements(edit, column)
            if not self._taken_out:
                body += [updated, *new] if edit.after else _put_before(new, updated)
            elif edit.after:
                body.append(updated)
                self._check(edit, [follower for _, follower in rest[: len(new)]], new)
                del rest[: len(new)]
            else:
                old = body[len(body) - len(new) :]
                above = self._check(edit, old, new)
                if _above(updated):
                    raise not_ours(self._source, edit.line)
                body = [*body[: len(body) - len(new)], updated.with_changes(leading_lines=above)]
        return updated_node.with_changes(body=body)

    def _check(
        self, edit: Insert, old: Sequence[cst.CSTNode], new: Sequence[cst.CSTNode]
    ) -> list[cst.EmptyLine]:
        """What stood above `old`, which must be what `_statements` makes, before that was put there."""
        if [_code(node) for node in old] != [_code(node) for node in new]:
            raise not_ours(self._source, edit.line)
        # A comment that somebody changed is found when the fix is put in again for comparison.
        above = _above(old[0])
        return above[: len(above) - len(_above(new[0]))]


def _put_before(
    new: Sequence[cst.SimpleStatementLine | cst.If], anchor: cst.BaseStatement
) -> list[cst.BaseStatement]:
    # What stands above the anchor stays above, so that the lines of one step stand together.
    first = new[0].with_changes(leading_lines=[*_above(anchor), *new[0].leading_lines])
    return [first, *new[1:], anchor.with_changes(leading_lines=[])]


def _statements(edit: Insert, column: int) -> list[cst.SimpleStatementLine | cst.If]:
    statements = []
    for code in edit.codes:
        if column + len(code) > WIDTH and code.endswith(")") and "\n" not in code:
            head, _, inside = code.rpartition("(")
            code = f"{head}(\n    {inside[:-1]}\n)"
        statement = cst.parse_statement(code)
        assert isinstance(statement, cst.SimpleStatementLine | cst.If)
        statements.append(statement)
    comments = textwrap.wrap(edit.comment, WIDTH - column - 2)
    above = [cst.EmptyLine(comment=cst.Comment(f"# {text}")) for text in comments]
    return [statements[0].with_changes(leading_lines=above), *statements[1:]]


def _above(node: cst.CSTNode) -> list[cst.EmptyLine]:
    return list(getattr(node, "leading_lines", ()))


def _code(node: cst.CSTNode) -> str:
    return cst.Module([node.with_changes(leading_lines=[])]).code  # type: ignore[list-item]
