"""Forwards with fused expressions, written from the source of the original.

These expressions are replaced, wherever they are in a forward, and nothing else changes:

| expression | with |
|---|---|
| ``self.norm(x) * (1 + scale) + shift``, if ``self.norm`` is a swapped norm | ``modulate`` |
| ``self.act(a) * b``, ``F.silu(a) * b``, ... | ``gate_mul`` |
| ``x + gate * y`` | ``gated_add`` |
| ``apply_rotary(x, tables)``, for functions with "rot" or "rope" in their name | ``rotate`` (rope.py) |

The norm or the product may be assigned to a name in an earlier statement of the same block, if nothing else uses it.
The replacements (fused.py) compute the original expression for all operands but those that the fused op was proven on.
"""

import ast
import copy
import functools
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable
from types import FunctionType, SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from fmkernels.patch import _random, _subclass
from fmkernels.swap import fused, rope

_FM = "__fused_expressions"
_EXPRESSIONS = SimpleNamespace(
    modulate=fused.modulate,
    gate_mul=fused.gate_mul,
    gated_add=fused.gated_add,
    gated_sum=fused.gated_sum,
    rotate=rope.rotate,
)
_SIMPLE = ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr


def activation_of(function: object) -> str | None:
    """Which activation this is, by a trial on random numbers."""
    if isinstance(function, nn.Module) and (any(True for _ in function.parameters()) or function._buffers):
        return None
    x = _random(64, seed=7) * 3
    try:
        with torch.no_grad():
            y = function(x.clone())
    except Exception:
        return None
    if not isinstance(y, torch.Tensor) or y.shape != x.shape:
        return None
    return next((n for n, act in fused.ACTIVATIONS.items() if torch.allclose(y, act(x), rtol=1e-6, atol=1e-7)), None)


@functools.cache
def parsed(function: FunctionType) -> ast.FunctionDef | None:
    """The definition of a function, or None if a copy of it could mean something else."""
    inner = inspect.unwrap(function)
    if not isinstance(inner, FunctionType) or inner.__closure__:
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inner))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if not isinstance(tree, ast.FunctionDef) or tree.name != inner.__name__ or not tree.args.args:
        return None
    mangled = (n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute))
    if any(name.startswith("__") and not name.endswith("__") for name in mangled):
        return None
    if any(isinstance(n, ast.Name) and n.id == "__class__" for n in ast.walk(tree)):
        return None
    ast.increment_lineno(tree, inner.__code__.co_firstlineno - 1)
    return tree


def called_attributes(function: FunctionType) -> set[str]:
    """The names X of all calls ``self.X(...)``."""
    tree = parsed(function)
    if tree is None:
        return set()
    own = tree.args.args[0].arg
    calls = (n.func for n in ast.walk(tree) if isinstance(n, ast.Call))
    return {
        f.attr for f in calls if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) and f.value.id == own
    }


def _names(node: ast.AST, context: type = ast.expr_context) -> list[str]:
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, context)]


def _written(node: ast.AST) -> set[str]:
    """Names that the statement assigns, or whose value it may change in place."""
    names = set(_names(node, (ast.Store, ast.Del)))
    for n in ast.walk(node):
        if isinstance(n, ast.Subscript) and not isinstance(n.ctx, ast.Load):
            names |= set(_names(n.value))
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr.endswith("_"):
            names |= set(_names(n.func.value))
        names |= {k for k in getattr(n, "names", []) if isinstance(k, str)}
    return names


def _binary(node: ast.AST, operator: type) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, operator)


def _is_one(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value == 1


def _one_plus(node: ast.AST) -> ast.expr | None:
    """s of ``1 + s``, ``(1 + s)[index]`` and ``(1 + s).unsqueeze(i)``."""
    if _binary(node, ast.Add):
        if _is_one(node.left):
            return node.right
        return node.left if _is_one(node.right) else None
    if isinstance(node, ast.Subscript) and (scale := _one_plus(node.value)):
        return ast.copy_location(ast.Subscript(scale, node.slice, node.ctx), node)
    method = node.func if isinstance(node, ast.Call) else None
    if isinstance(method, ast.Attribute) and method.attr == "unsqueeze" and (scale := _one_plus(method.value)):
        return ast.copy_location(
            ast.Call(ast.Attribute(scale, method.attr, method.ctx), node.args, node.keywords), node
        )
    return None


class _Rewriter(ast.NodeTransformer):
    def __init__(self, tree: ast.FunctionDef, scope: dict, norms: frozenset, acts: dict):
        self.own, self.scope, self.norms, self.acts = tree.args.args[0].arg, scope, norms, acts
        self.loads, self.done = Counter(_names(tree, ast.Load)), Counter()
        self.block, self.index, self.removed = [], 0, set()

    # Statements

    def generic_visit(self, node):
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, name, self.statements(value))
            elif isinstance(value, list):
                value[:] = [self.visit(v) if isinstance(v, ast.AST) else v for v in value]
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
        return node

    def statements(self, block: list[ast.stmt]) -> list[ast.stmt]:
        outer = self.block, self.index, self.removed
        self.block, self.removed = block, set()
        for i, statement in enumerate(block):
            self.index = i
            nested = not isinstance(statement, _SIMPLE)
            kept = self.block
            if nested:  # a definition in this block may be used after the nested one
                self.block = []
            block[i] = self.visit(statement)
            self.block = kept
        result = [s for i, s in enumerate(block) if i not in self.removed]
        self.block, self.index, self.removed = outer
        return result

    def visit_FunctionDef(self, node):
        return node  # nested functions have their own scope

    visit_Lambda = visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef  # noqa: N815
    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_FunctionDef  # noqa: N815

    def definition(self, node: ast.expr) -> tuple[int, ast.expr] | None:
        """The index and value of the statement that assigns this name, if the value can move here."""
        if not isinstance(node, ast.Name) or not self.block:
            return None
        use = self.block[self.index]
        if _names(use, ast.Load).count(node.id) != 1:
            return None
        again = isinstance(use, ast.Assign) and any(isinstance(t, ast.Name) and t.id == node.id for t in use.targets)
        if not again and self.loads[node.id] != 1:
            return None
        between: set[str] = set()
        for i in range(self.index - 1, -1, -1):
            if i in self.removed:
                continue
            statement = self.block[i]
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target = statement.targets[0]
                if isinstance(target, ast.Name) and target.id == node.id:
                    moves = not between & set(_names(statement.value, ast.Load))
                    return (i, statement.value) if moves else None
            if not isinstance(statement, _SIMPLE) or node.id in _names(statement):
                return None
            between |= _written(statement)
        return None

    def resolved(self, node: ast.expr, matches: Callable) -> tuple[ast.expr, int | None] | None:
        """node, or the value of the name that it is, if it matches; with the statement to remove."""
        if matches(node):
            return node, None
        found = self.definition(node)
        return (found[1], found[0]) if found and matches(found[1]) else None

    # Patterns

    def is_norm(self, node: ast.expr) -> bool:
        return self.is_own_call(node) and node.func.attr in self.norms

    def is_own_call(self, node: ast.expr) -> bool:
        """self.X(argument)"""
        return (
            isinstance(node, ast.Call)
            and len(node.args) == 1
            and not node.keywords
            and not isinstance(node.args[0], ast.Starred)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == self.own
        )

    def activation(self, node: ast.expr) -> tuple[ast.expr, str] | None:
        """(the callable, which activation), if node is a call of one with a single operand."""
        if self.is_own_call(node):
            act = self.acts.get(node.func.attr)
            return (node.func, act) if act else None
        if not isinstance(node, ast.Call) or len(node.args) != 1:
            return None
        options = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
        function = self.scope_value(node.func)
        if function is F.silu and not options:
            return ast.Constant(None), "silu"
        if function is F.gelu and options in ({}, {"approximate": "none"}):
            return ast.Constant(None), "gelu"
        if function is F.gelu and options == {"approximate": "tanh"}:
            return ast.Constant(None), "gelu_tanh"
        return None

    def scope_value(self, node: ast.expr) -> object:
        """What a dotted global name refers to."""
        if isinstance(node, ast.Name):
            return self.scope.get(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(self.scope_value(node.value), node.attr, None)
        return None

    def call(self, name: str, node: ast.AST, *args: ast.expr) -> ast.expr:
        self.done[name] += 1
        function = ast.Attribute(ast.Name(_FM, ast.Load()), name, ast.Load())
        new = ast.Call(function, [self.visit(arg) for arg in args], [])
        return ast.copy_location(ast.fix_missing_locations(ast.copy_location(new, node)), node)

    def modulated(self, product: ast.expr) -> tuple[list[ast.expr], list[int]] | None:
        """[norm, x, scale] of ``norm(x) * (1 + scale)`` and the statements to remove."""
        found = self.resolved(product, lambda n: _binary(n, ast.Mult))
        if found is None:
            return None
        product, removed = found
        for factor, normed in ((product.right, product.left), (product.left, product.right)):
            if (scale := _one_plus(factor)) is None:
                continue
            if removed is not None:  # the norm would have to be moved as well
                inner = (normed, None) if self.is_norm(normed) else None
            else:
                inner = self.resolved(normed, self.is_norm)
            if inner:
                call, also = inner
                return [call.func, call.args[0], scale], [i for i in (removed, also) if i is not None]
        return None

    def visit_BinOp(self, node):
        if isinstance(node.op, ast.Add):
            for product, shift in ((node.left, node.right), (node.right, node.left)):
                if found := self.modulated(product):
                    self.removed |= set(found[1])
                    return self.call("modulate", node, *found[0], shift)
            for product, x, name in ((node.right, node.left, "gated_add"), (node.left, node.right, "gated_sum")):
                found = self.resolved(product, lambda n: _binary(n, ast.Mult))
                if found is None or self.modulated(product) or self.gate(found[0]):
                    continue
                a, b = found[0].left, found[0].right
                if any(isinstance(n, ast.Constant) for n in (a, b, x)) or _one_plus(a) or _one_plus(b):
                    continue
                if found[1] is not None and any(isinstance(n, ast.Call) and self.is_own_call(n) for n in (a, b)):
                    continue  # moves only what has no effects
                if found[1] is not None:
                    self.removed.add(found[1])
                return self.call(name, node, *((x, a, b) if name == "gated_add" else (a, b, x)))
        if isinstance(node.op, ast.Mult):
            if found := self.modulated(node):
                self.removed |= set(found[1])
                return self.call("modulate", node, *found[0])
            if found := self.gate(node):
                return self.call("gate_mul", node, *found)
        return self.generic_visit(node)

    def visit_Call(self, node):
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        starred = any(k.arg is None for k in node.keywords)
        if ("rot" in name.lower() or "rope" in name.lower()) and len(node.args) in (2, 3) and not starred:
            self.done["rotate"] += 1
            node = self.generic_visit(node)
            function = ast.Attribute(ast.Name(_FM, ast.Load()), "rotate", ast.Load())
            new = ast.Call(function, [node.func, *node.args], node.keywords)
            return ast.fix_missing_locations(ast.copy_location(new, node))
        return self.generic_visit(node)

    def gate(self, product: ast.expr) -> list[ast.expr] | None:
        for side, other, first in ((product.left, product.right, True), (product.right, product.left, False)):
            if (found := self.activation(side)) and not isinstance(other, ast.Constant):
                function, act = found
                operands = [side.args[0], other] if first else [other, side.args[0]]
                return [function, ast.Constant(act), *operands, ast.Constant(first)]
        return None


@functools.cache
def rewritten(function: FunctionType, norms: frozenset, acts: frozenset) -> tuple[FunctionType | None, tuple]:
    """A copy of the function with fused expressions, and ((kind, number), ...); None if there are none."""
    original = parsed(function)
    if original is None:
        return None, ()
    tree, inner = copy.deepcopy(original), inspect.unwrap(function)
    rewriter = _Rewriter(tree, inner.__globals__, norms, dict(acts))
    tree.body = rewriter.statements(tree.body)
    if not rewriter.done:
        return None, ()
    tree.returns = None
    for argument in ast.walk(tree.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    maker = ast.FunctionDef(
        name="make",
        args=ast.arguments([], [ast.arg(_FM)], None, [], [], None, []),
        body=[tree, ast.Return(ast.Name(tree.name, ast.Load()))],
        decorator_list=[],
    )
    maker.type_params = []
    module = ast.fix_missing_locations(ast.Module([maker], []))
    scope: dict = {}
    exec(compile(module, inner.__code__.co_filename, "exec", dont_inherit=True), inner.__globals__, scope)
    made = scope["make"](_EXPRESSIONS)
    if made is not None:
        unwrapped = inspect.unwrap(made)
        unwrapped.__defaults__, unwrapped.__kwdefaults__ = inner.__defaults__, inner.__kwdefaults__
        unwrapped.__qualname__ = inner.__qualname__
    return made, tuple(sorted(rewriter.done.items()))


def only_rotates(cls: type) -> bool:
    """Whether the name of a function is all for which the class's forward was considered."""
    return [kind for kind, _ in rewritten(cls.forward, frozenset(), frozenset())[1]] == ["rotate"]


def rewritten_class(cls: type, norms: frozenset, acts: frozenset, method: str = "forward") -> type | None:
    """cls with fused expressions in this method, or None if it has none."""
    original = getattr(cls, method, None)
    if not isinstance(original, FunctionType):
        return None
    new, _ = rewritten(original, norms, acts)
    if new is None:
        return None

    @functools.wraps(original)
    def fast(self, *args, **kwargs):
        if torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        return new(self, *args, **kwargs)

    made = (rewritten_class, cls, norms, acts, method)
    return _subclass(made, **{method: fast})
