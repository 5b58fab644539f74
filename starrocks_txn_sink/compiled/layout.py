"""What Python and C exchange. Written by `python -m tools` from `layout.h`: change that file."""

import ctypes
import enum


class MemberKind(enum.IntEnum):
    """A column that is read from JSON objects.

    A TEXT is the content of a string, or the JSON of another value; a STRING is nothing else. A LIST is the JSON of an
    array.
    """

    TEXT = 0
    WHOLE = 1
    STRING = 2
    OBJECT = 3
    LIST = 4


class Binary(ctypes.Structure):
    """A binary column: `ends` has room for rows + 1, `data` for all values, `valid` is zero."""

    _fields_ = (
        ("ends", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("valid", ctypes.c_void_p),
        ("nulls", ctypes.c_int64),
    )


class Column(ctypes.Structure):
    """A column of the result.

    It ends with a Binary, whose `data` has SLACK bytes more than all values. For a WHOLE `data` is an array of int64,
    and `ends` is unused. An OBJECT has neither: the columns of its members are `members` ones from number `first` on,
    behind its own. A `coded` column has few texts: `data` has each behind its size (int32), `members` of them in
    `first` bytes, perhaps one several times, and `ends` has the number of each row's.
    """

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_int64),
        ("kind", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("members", ctypes.c_int64),
        ("coded", ctypes.c_int64),
        ("ends", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("valid", ctypes.c_void_p),
        ("nulls", ctypes.c_int64),
    )


class Text(ctypes.Structure):
    """A text that is looked for."""

    _fields_ = (
        ("text", ctypes.c_char_p),
        ("text_size", ctypes.c_int64),
    )


class Texts(ctypes.Structure):
    """Texts of one column, which begin with number `first` of all.

    Text n of them lies between two of the `bounds` (int64 if `wide`, else int32). Without `valid` none is NULL; its bit
    n is number `bit` + n.
    """

    _fields_ = (
        ("bounds", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("valid", ctypes.c_void_p),
        ("bit", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("wide", ctypes.c_int64),
    )


class Plan(ctypes.Structure):
    """What is done to the rows of one table: `members` are of Conversion, of Rule, of ColumnRule or of KeyText.

    With `only_named` members without a Rule are left out; of ColumnRules it is how many columns a row may not leave
    out, and of KeyTexts how many bytes they may have together.
    """

    _fields_ = (
        ("members", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("only_named", ctypes.c_int64),
    )


class KeyText(ctypes.Structure):
    """A column of texts in a primary key."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_int64),
    )


class ConversionKind(enum.IntEnum):
    """What a value is: KEEP leaves it as it is, ODD has conversions inside, which Python alone knows.

    An UNSIGNED has 64 bits, in a signed number.
    """

    KEEP = 0
    ODD = 1
    DATE = 2
    TIME = 3
    TIMESTAMP = 4
    ISO_DATE = 5
    ISO_TIME = 6
    ISO_TIMESTAMP = 7
    DECIMAL = 8
    VARIABLE_DECIMAL = 9
    BITS = 10
    DOCUMENT = 11
    UNSIGNED = 12


class Conversion(ctypes.Structure):
    """How a value is written.

    `number` is that of the decimals of a second, or the scale; `array` is 1 for an array of such values. `bare` is 1
    for values that no schema explains: those of another form stay, and a number below 0 explains none.
    """

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_int64),
        ("kind", ctypes.c_int64),
        ("number", ctypes.c_int64),
        ("array", ctypes.c_int64),
        ("bare", ctypes.c_int64),
    )


class RuleKind(enum.IntEnum):
    """What becomes of a member.

    DROP leaves it out; HASH writes the SHA-256 of a text and of the value; CUT the first characters, `number` of them;
    CONSTANT the text in place of the value. NAMES is a list of names, and leaves the row to Python if a rule is for one
    of them; ODD leaves it to Python.
    """

    KEEP = 0
    ODD = 1
    DROP = 2
    HASH = 3
    CUT = 4
    CONSTANT = 5
    NAMES = 6


class Rule(ctypes.Structure):
    """What is done to a member. With a `to` (a name in quotes and a colon) it is renamed."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_int64),
        ("kind", ctypes.c_int64),
        ("number", ctypes.c_int64),
        ("text", ctypes.c_char_p),
        ("text_size", ctypes.c_int64),
        ("to", ctypes.c_char_p),
        ("to_size", ctypes.c_int64),
    )


class ColumnKind(enum.IntEnum):
    """What a column holds. ASK leaves each value but NULL to Python."""

    ANY = 0
    BOOLEAN = 1
    INTEGER = 2
    FLOATING = 3
    DECIMAL = 4
    DAY = 5
    MOMENT = 6
    TEXT = 7
    CHAR = 8
    DOCUMENT = 9
    ARRAY = 10
    ASK = 11
    MAP = 12
    STRUCT = 13
    BYTES = 14


class ColumnRule(ctypes.Structure):
    """The rule of a column.

    `name` is the text in front of a value as most rows write it: a quote, the name, a quote and a colon. `number` is
    the bits of an INTEGER, the decimals of a DECIMAL, or the most bytes of a TEXT, CHAR, DOCUMENT or of BYTES; `whole`
    the digits of a DECIMAL in front of the point, and of BYTES 1 for hexadecimal texts and 0 for base64. A DAY or
    MOMENT with a zone is written in UTC if `whole` is 0, and asked about otherwise. With `nullable` NULL is kept.
    `needed`: 1 in each row but a delete, 2 in a delete; 3 in both. `inner` has the rule of an ARRAY's elements, those
    of a MAP's keys and values, or those of a STRUCT's fields, of which `number` is how many there are. `filler` is the
    member that a row without the column gets; without one, and with a long one, Python says what is missing. With a
    `base` each row gets one of its own: the last digits of the filler count up.
    """

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_int64),
        ("kind", ctypes.c_int64),
        ("number", ctypes.c_int64),
        ("whole", ctypes.c_int64),
        ("nullable", ctypes.c_int64),
        ("needed", ctypes.c_int64),
        ("inner", ctypes.c_void_p),
        ("filler", ctypes.c_void_p),
        ("filler_size", ctypes.c_int64),
        ("base", ctypes.c_int64),
    )


class RowKind(enum.IntEnum):
    """What is found in a row.

    A DOUBTFUL one may be something else than one JSON object, a NEW one has names of a new shape, and a MISFIT is not
    plainly kept by its table.
    """

    DOUBTFUL = 0
    NEW = 1
    MISFIT = 2


class AvroKind(enum.IntEnum):
    """A type of Avro. `int` is a LONG, for both are written alike."""

    NULL = 0
    BOOLEAN = 1
    LONG = 2
    FLOAT = 3
    DOUBLE = 4
    BYTES = 5
    STRING = 6
    FIXED = 7
    ENUM = 8
    ARRAY = 9
    MAP = 10
    UNION = 11
    RECORD = 12


class AvroType(ctypes.Structure):
    """A type.

    The types of its fields, branches, items or symbols are `count` ones from number `first` on. `text` is what comes in
    front of a field (its name and a colon), or a symbol. A FIXED has `count` bytes.
    """

    _fields_ = (
        ("kind", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("text", ctypes.c_char_p),
        ("text_size", ctypes.c_int64),
    )


class ProtoKind(enum.IntEnum):
    """The kind of a Protobuf field."""

    BOOL = 0
    INT32 = 1
    INT64 = 2
    UINT32 = 3
    UINT64 = 4
    SINT32 = 5
    SINT64 = 6
    ENUM = 7
    FIXED32 = 8
    SFIXED32 = 9
    FLOAT = 10
    FIXED64 = 11
    SFIXED64 = 12
    DOUBLE = 13
    STRING = 14
    BYTES = 15
    MESSAGE = 16
    WRAPPER = 17
    DECIMAL = 18
    DATE = 19
    TIME = 20
    TIMESTAMP = 21


class ProtoLabel(enum.IntEnum):
    """What an absent field means: its type's zero, NULL, an error; or that it may come several times."""

    IMPLICIT = 0
    OPTIONAL = 1
    REQUIRED = 2
    REPEATED = 3
    MAP = 4


class ProtoForm(enum.IntEnum):
    """How a decimal is written: as base64 with the scale of its schema, with its own scale, or as a text for StarRocks.

    So are dates and times, in ISO 8601 but for PLAIN.
    """

    CONNECT = 0
    OWN_SCALE = 1
    PLAIN = 2


class ProtoField(ctypes.Structure):
    """A field, or a value of an enum.

    The fields of its message, or the values of its enum, are `count` ones from `first` on; the count of a decimal, a
    date or a time is its form, and the `first` of a CONNECT decimal its scale. `text` is the name and a colon, or a
    symbol. Of the fields with the same `oneof`, unless it is 0, a message has one at most.
    """

    _fields_ = (
        ("number", ctypes.c_int64),
        ("kind", ctypes.c_int64),
        ("label", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("oneof", ctypes.c_int64),
        ("text", ctypes.c_char_p),
        ("text_size", ctypes.c_int64),
    )


class MessageSchema(ctypes.Structure):
    """A schema of a registry: its parts, and the text in front of the JSON.

    A part is an AvroType or a ProtoField, and number 0 is the whole. The text is an object that ends behind the JSON. A
    message has `header` bytes in front of its value.
    """

    _fields_ = (
        ("parts", ctypes.c_void_p),
        ("before", ctypes.c_char_p),
        ("before_size", ctypes.c_int64),
        ("header", ctypes.c_int64),
    )


class Message(ctypes.Structure):
    """`rd_kafka_message_t` of rdkafka.h, a public type whose layout librdkafka keeps."""

    _fields_ = (
        ("error", ctypes.c_int32),
        ("topic", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("value", ctypes.c_void_p),
        ("value_size", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_size", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("of_librdkafka", ctypes.c_void_p),
    )
