"""ai.onnx.ml feature preprocessing: lookup tables, scaling, one-hot encoding, n-gram counts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise

import numpy as np

from ekiden.frontend.common.node import Result
from ekiden.frontend.common.sequence_value import MapValue
from ekiden.frontend.common.string_value import StringValue, flatten_strings, to_string_value
from ekiden.frontend.common.value import Value
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.ir.dtype import int_range, is_float
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, Tuple, const
from ekiden.runtime.string_tensors import encode_strings, sort_strings
from ekiden.topi.dimensions import Shape, known_int

ML_DOMAIN = "ai.onnx.ml"
_SLICE_END = 2**31 - 1
"""Beyond any extent."""


def value_shape(value: Value) -> Shape:
    """Return the shape of a numeric or string tensor."""
    return value.shape if isinstance(value, StringValue) else value.type.shape


def find_key_index(
    node: OnnxNode, elements: Value, keys: Array | Sequence[int | float | str]
) -> Expr:
    """Emit the int64 index of each element among the keys, -1 for none; of equal keys the last.

    Args:
        node: the node.
        elements: numbers or strings.
        keys: the keys, of one type with the elements.
    """
    key_index = {k: i for i, k in enumerate(keys)}
    if isinstance(elements, StringValue):
        order = sort_strings(map(str, key_index))
        sorted_index = op.text.find(flatten_strings(elements), const(encode_strings(order)))
        sorted_index = op.reshape(sorted_index, elements.shape, allowzero=True)
        return _table_entries([key_index[k] for k in order], sorted_index, -1)
    dtype = elements.type.dtype
    if any(isinstance(k, str) for k in key_index):
        node.reject(f"strings cannot be looked up among elements of {dtype}")
    ends = int_range(dtype)
    numbers = [k for k in key_index if k == k and not isinstance(k, str)]
    if ends is not None:  # what the type cannot hold is no element's
        numbers = [k for k in numbers if ends[0] <= k <= ends[1]]
    # Keys are sorted at import, so that the lookup is a binary search over a constant.
    table = np.unique(np.array(numbers, dtype))
    if not table.size:
        return op.full_like(op.cast(node.scope.expr(elements), "int64"), const(np.int64(-1)))
    position = op.searchsorted(const(table), node.scope.expr(elements), dtype="int64")
    position = op.minimum(position, const(np.int64(len(table) - 1)))
    same = op.equal(op.take(const(table), position, axis=0), node.scope.expr(elements))
    by_value = {np.array(k, dtype).item(): key_index[k] for k in numbers}
    # NaN equals nothing, so a NaN key is looked up by isnan instead of by search.
    absent = next((i for k, i in key_index.items() if k != k), -1)
    none: Expr = const(np.int64(-1))
    if absent >= 0:
        none = op.where(op.isnan(node.scope.expr(elements)), const(np.int64(absent)), none)
    table_index = const(np.array([by_value[v.item()] for v in table], np.int64))
    return op.where(same, op.take(table_index, position, axis=0), none)


def _table_entries(table: Sequence[int], indices: Expr, default: int) -> Expr:
    """Emit int64 table entries by index; -1 gives the default."""
    return op.take(
        const(np.array([*table, default], np.int64)),
        _replace_missing_index(indices, len(table)),
        axis=0,
    )


def _replace_missing_index(indices: Expr, last: int) -> Expr:
    """Emit indices with -1 replaced by `last`."""
    return op.where(op.less(indices, const(np.int64(0))), const(np.int64(last)), indices)


def gather_or_default(
    node: OnnxNode, indices: Expr, values: Array, default: object
) -> Expr | StringValue:
    """Emit values by index; -1 gives the default.

    Args:
        node: the node.
        indices: int64, -1 for the default.
        values: the table; strings where its dtype is object.
        default: the value for index -1.
    """
    # The default is appended to the table: one gather then serves hits and misses.
    end = np.array([default], values.dtype)
    table = np.concatenate([values.ravel(), end])
    position = _replace_missing_index(indices, values.size)
    if values.dtype == np.object_:
        return to_string_value(node.scope, op.take(const(encode_strings(table)), position, axis=0))
    return op.take(const(table), position, axis=0)


# Tables.

_LIST_DTYPES = {"floats": np.float32, "int64s": np.int64, "strings": object}


def attribute_list(node: OnnxNode, prefix: str) -> tuple[str, Array]:
    """Return (type, values) of the list attribute `prefix`_floats, _int64s, _encode_strings or
    _tensor.
    """
    tensor = node.get_tensor(f"{prefix}_tensor")
    if tensor is not None:
        return "tensor", tensor.ravel()
    for kind, dtype in _LIST_DTYPES.items():
        if node.has(f"{prefix}_{kind}"):
            read = {"floats": node.get_floats, "int64s": node.get_ints, "strings": node.get_strings}
            return kind, np.array(read[kind](f"{prefix}_{kind}"), dtype)
    node.reject(f"attribute '{prefix}_...' is missing")


def _default_value(node: OnnxNode, kind: str, values: Array) -> object:
    """Return the default value of a lookup for its type."""
    name = f"default_{kind.removesuffix('s')}"
    if kind == "tensor":
        tensor = node.get_tensor(name)
        plain = "_Unused" if values.dtype == np.object_ else -1 if values.dtype.kind == "i" else 0
        return plain if tensor is None else tensor.ravel()[0]
    if kind == "strings":
        return node.get_string(name, "_Unused")
    return node.get_int(name, -1) if kind == "int64s" else node.get_float(name, -0.0)


def _label_encoder(node: OnnxNode) -> Result:
    """Convert LabelEncoder since version 2: keys to values of any type."""
    _, keys = attribute_list(node, "keys")
    kind, values = attribute_list(node, "values")
    if keys.size != values.size:
        node.reject(f"as many values as keys expected, got {values.size} and {keys.size}")
    indices = find_key_index(node, node.value(0), keys.tolist())
    return gather_or_default(node, indices, values, _default_value(node, kind, values))


def _map_strings_and_numbers(
    node: OnnxNode, words: Sequence[str], numbers: Sequence[int]
) -> Result:
    """Map strings to numbers or numbers to strings, by the type of the input."""
    if isinstance(node.value(0), StringValue):
        indices = find_key_index(node, node.value(0), words)
        values = np.array(numbers, np.int64)
        return gather_or_default(node, indices, values, node.get_int("default_int64", -1))
    indices = find_key_index(node, node.value(0), numbers)
    values = np.array(words, object)
    return gather_or_default(node, indices, values, node.get_string("default_string", "_Unused"))


def _label_encoder_1(node: OnnxNode) -> Result:
    words = node.get_strings("classes_strings")
    return _map_strings_and_numbers(node, words, range(len(words)))


def _category_mapper(node: OnnxNode) -> Result:
    return _map_strings_and_numbers(
        node, node.get_strings("cats_strings"), node.get_ints("cats_int64s")
    )


def _one_hot(node: OnnxNode) -> Expr:
    """Convert OneHotEncoder to float32 of one more axis. Unknown categories are rows of zeros,
    whatever the attribute `zeros` is.
    """
    _, cats = attribute_list(node, "cats")
    categories = node.value(0)
    if not isinstance(categories, StringValue) and is_float(categories.type.dtype):
        # ONNX Runtime truncates float categories to integers.
        categories = node.scope.bind_named(op.cast(node.expr(0), "int64"))
    indices = find_key_index(node, categories, cats.tolist())
    wide = op.expand_dims(indices, axis=len(value_shape(categories)))
    return op.cast(op.equal(wide, const(np.arange(cats.size, dtype=np.int64))), "float32")


# Numbers.


def read_matrix(node: OnnxNode, index: int = 0) -> Expr:
    """Return an input as a matrix [n, c]; a vector [c] is one row."""
    data = node.expr(index)
    return op.expand_dims(data, axis=0) if node.rank(index) == 1 else data


def read_float_matrix(node: OnnxNode, index: int = 0) -> Expr:
    """Return an input as a matrix of float32, or of its own float dtype."""
    data = read_matrix(node, index)
    return data if is_float(node.dtype(index)) else op.cast(data, "float32")


def _scaler(node: OnnxNode) -> Expr:
    data = op.cast(node.expr(0), "float32")
    offset, scale = (np.array(node.get_floats(n), np.float32) for n in ("offset", "scale"))
    return op.multiply(op.subtract(data, const(offset)), const(scale))


def _normalizer(node: OnnxNode) -> Expr:
    data = op.cast(node.expr(0), "float32")
    norm, axis = node.get_string("norm", "MAX"), node.rank(0) - 1
    if norm == "L2":
        size = op.sqrt(op.sum(op.multiply(data, data), axis=axis, keepdims=True))
    else:
        size = (op.max if norm == "MAX" else op.sum)(op.abs(data), axis=axis, keepdims=True)
    # A row of zeros stays zero instead of becoming NaN.
    return op.divide(data, op.maximum(size, const(np.float32(1e-30))))


def _binarizer(node: OnnxNode) -> Expr:
    limit = const(node.get_float("threshold", 0.0), node.dtype(0))
    return op.cast(op.greater(node.expr(0), limit), node.dtype(0))


def _imputer(node: OnnxNode) -> Expr:
    """Convert Imputer: replaced values become the imputed ones."""
    floats, dtype = node.has("imputed_value_floats"), node.dtype(0)
    name = "imputed_value_floats" if floats else "imputed_value_int64s"
    values = np.array(node.get_floats(name) if floats else node.get_ints(name), dtype)
    old = (
        node.get_float("replaced_value_float", 0.0)
        if floats
        else node.get_int("replaced_value_int64")
    )
    data = node.expr(0)
    missing = op.isnan(data) if old != old else op.equal(data, const(old, dtype))
    return op.where(missing, const(values), data)


def _feature_vectorizer(node: OnnxNode) -> Expr:
    """Convert FeatureVectorizer: each input cut or zero-padded to its width, and concatenated."""
    columns = []
    widths = node.get_ints("inputdimensions")
    if len(widths) != len(node.inputs):
        node.reject(f"'inputdimensions' has {len(widths)} numbers for {len(node.inputs)}")
    for index, width in enumerate(widths):
        if node.rank(index) not in (1, 2):
            node.reject(f"input {index} must have rank 1 or 2, got {node.rank(index)}")
        data = op.cast(read_matrix(node, index), "float32")
        have = known_int(node.tensor_type_of(data).shape[1])
        if have is None:
            node.reject(f"the number of columns of input {index} must be known")
        # As in ONNX Runtime, inputs are cut or padded to their stated width.
        if have > width:
            data = op.strided_slice(data, [0], [width], axes=[1])
        elif have < width:
            data = op.nn.pad(data, [(0, 0), (0, width - have)], const(np.float32(0)))
        columns.append(data)
    return columns[0] if len(columns) == 1 else op.concatenate(Tuple(tuple(columns)), axis=1)


def _feature_extractor(node: OnnxNode) -> Expr | StringValue:
    """Convert ArrayFeatureExtractor: columns by index."""
    features = node.value(0)
    rank = len(value_shape(features))
    data = features.expr if isinstance(features, StringValue) else node.expr(0)
    assert data is not None
    selected = op.take(data, op.reshape(node.expr(1), (-1,)), axis=rank - 1, mode="raise")
    selected_rows = op.expand_dims(selected, axis=0) if rank == 1 else selected
    return (
        to_string_value(node.scope, selected_rows)
        if isinstance(features, StringValue)
        else selected_rows
    )


def _zip_map(node: OnnxNode) -> MapValue:
    """Convert ZipMap: columns become values of a map by class label."""
    strings = node.has("classlabels_strings")
    names = (
        node.get_strings("classlabels_strings") if strings else node.get_ints("classlabels_int64s")
    )
    data = node.expr(0) if node.rank(0) == 2 else op.expand_dims(node.expr(0), axis=0)
    return MapValue(node.scope.attach_span(data), names)


# Counts of n-grams.


def _ngram_sections(node: OnnxNode, count: int) -> list[tuple[int, int, int]]:
    """Return (length, first pool index, count) per n-gram length; length 0 for lengths that are not
    counted.
    """
    starts = [*node.get_ints("ngram_counts"), count]
    first, last = node.get_int("min_gram_length", 1), node.get_int("max_gram_length", 1)
    grams, gram = [], 0
    for size, (start, end) in enumerate(pairwise(starts), 1):
        number = (end - start) // size
        grams.append((size if first <= size <= last else 0, start, number))
        gram += number
    return grams


MAX_SKIPS = 1000
"""Tokens that may be left out between two of an n-gram, in rows of unknown length."""


def _max_skips(node: OnnxNode, length: int | None, size: int) -> int:
    """Return the largest skip between two tokens of an n-gram, bounded by the row length. Raises
    Unsupported for a number that is negative, or huge where rows have any length.
    """
    skips = node.get_int("max_skip_count", 0)
    if skips < 0 or (length is None and skips > MAX_SKIPS):
        node.reject(f"'max_skip_count': from 0 to {MAX_SKIPS} expected, got {skips}")
    if size == 1:
        return 0
    return skips if length is None else max(0, min(skips, (length - 1) // (size - 1) - 1))


def _count_ngrams(node: OnnxNode, ids: Expr, pool: Array, size: int) -> Expr:
    """Count each n-gram of a pool [count, size] in each row of ids [batch, length]."""
    length = node.tensor_type_of(ids).shape[1]
    skips = _max_skips(node, known_int(length), size)
    counts = []
    # Skip n-grams: the items of an n-gram are `step` tokens apart, for every step that is allowed.
    for step in range(1, skips + 2):
        # -1 is no token's number, so n-grams that leave the row match nothing.
        wide = op.nn.pad(ids, [(0, 0), (0, (size - 1) * step)], const(np.int64(-1)))
        same = []
        for k in range(size):
            shifted = op.strided_slice(
                wide, [0, k * step], [_SLICE_END, length + k * step], axes=[0, 1]
            )
            same.append(op.equal(op.expand_dims(shifted, axis=2), const(pool[:, k])))
        hits = op.cast(reduce(op.logical_and, same), "float32")
        counts.append(op.sum(hits, axis=1))
    return reduce(op.add, counts)


def _tf_idf(node: OnnxNode) -> Expr:
    """Convert TfIdfVectorizer: one column per n-gram of the pool."""
    strings = node.has("pool_strings")
    pool: list[int | float | str] = []
    pool += node.get_strings("pool_strings") if strings else node.get_ints("pool_int64s")
    tokens = {t: i for i, t in enumerate(dict.fromkeys(pool))}
    ids = find_key_index(node, node.value(0), list(tokens))
    rank = len(value_shape(node.value(0)))
    batch = op.expand_dims(ids, axis=0) if rank == 1 else ids
    columns = np.array(node.get_ints("ngram_indexes"), np.int64)
    counts: list[Expr] = []
    used: list[int] = []
    position = 0
    for size, start, number in _ngram_sections(node, len(pool)):
        if size and number:
            flat = [tokens[t] for t in pool[start : start + size * number]]
            counts.append(_count_ngrams(node, batch, np.array(flat).reshape(number, size), size))
            used += range(position, position + number)
        position += number
    if position != len(columns):
        node.reject(f"'ngram_indexes' has {len(columns)} entries for {position} n-grams")
    weighted = _weight_counts(node, counts, np.array(used, np.int64), columns)
    return op.squeeze(weighted, axis=[0]) if rank == 1 else weighted


def _weight_counts(
    node: OnnxNode, gram_counts: Sequence[Expr], used: Array, columns: Array
) -> Expr:
    """Weight the n-gram counts and scatter them to their columns; other columns are 0."""
    if not gram_counts:
        node.reject("no n-gram has a length that is counted")
    counts = (
        gram_counts[0]
        if len(gram_counts) == 1
        else op.concatenate(Tuple(tuple(gram_counts)), axis=1)
    )
    mode = node.get_string("mode", "TF")
    if mode != "TF":
        weights = np.ones(len(columns), np.float32)
        if node.has("weights"):
            weights = np.array(node.get_floats("weights"), np.float32)
        base = counts if mode == "TFIDF" else op.minimum(counts, const(np.float32(1)))
        counts = op.multiply(base, const(weights[used]))
    # A bound, because one large index would allocate a row of that length.
    width = node.check_declared_count("a number of 'ngram_indexes'", int(columns.max()) + 1)
    count_index = np.full(width, len(used), np.int64)
    count_index[columns[used]] = np.arange(len(used))
    padded = op.nn.pad(counts, [(0, 0), (0, 1)], const(np.float32(0)))
    return op.take(padded, const(count_index), axis=1)


# fmt: off
ROWS = (
    OnnxRow("LabelEncoder",          _label_encoder_1, domain=ML_DOMAIN,
        attributes="classes_strings default_int64 default_string"),
    OnnxRow("LabelEncoder",          _label_encoder, since_version=2, domain=ML_DOMAIN,
        attributes="default_float default_int64 default_string default_tensor keys_floats "
        "keys_int64s keys_strings keys_tensor values_floats values_int64s values_strings "
        "values_tensor"),
    OnnxRow("CategoryMapper",        _category_mapper, domain=ML_DOMAIN,
        attributes="cats_int64s cats_strings default_int64 default_string"),
    OnnxRow("OneHotEncoder",         _one_hot, domain=ML_DOMAIN,
        attributes="cats_int64s cats_strings zeros"),
    OnnxRow("Scaler",                _scaler, domain=ML_DOMAIN, attributes="offset scale"),
    OnnxRow("Normalizer",            _normalizer, domain=ML_DOMAIN, attributes="norm",
        supported_values={"norm": ("MAX", "L1", "L2")}),
    OnnxRow("Binarizer",             _binarizer, domain=ML_DOMAIN, attributes="threshold"),
    OnnxRow("Imputer",               _imputer, domain=ML_DOMAIN,
        attributes="imputed_value_floats imputed_value_int64s replaced_value_float "
        "replaced_value_int64"),
    OnnxRow("FeatureVectorizer",     _feature_vectorizer, domain=ML_DOMAIN,
        attributes="inputdimensions"),
    OnnxRow("ArrayFeatureExtractor", _feature_extractor, domain=ML_DOMAIN),
    OnnxRow("ZipMap",                _zip_map, domain=ML_DOMAIN,
        attributes="classlabels_int64s classlabels_strings"),
    OnnxRow("TfIdfVectorizer",       _tf_idf, since_version=9,
        attributes="max_gram_length max_skip_count min_gram_length mode ngram_counts ngram_indexes "
        "pool_int64s pool_strings weights", supported_values={"mode": ("TF", "IDF", "TFIDF")}),
)
# fmt: on
