/* What Python and C exchange: the only place that says how. `python -m tools` writes layout.py from it: a class for each
   struct and for each enum. So a declaration has one line a member, and a struct only numbers and pointers. */

#ifndef STARROCKS_TXN_SINK_LAYOUT_H
#define STARROCKS_TXN_SINK_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

/* A column that is read from JSON objects. A TEXT is the content of a string, or the JSON of another value; a STRING is
   nothing else. A LIST is the JSON of an array. */
enum MemberKind {
    MEMBER_TEXT,
    MEMBER_WHOLE,
    MEMBER_STRING,
    MEMBER_OBJECT,
    MEMBER_LIST,
};

/* A binary column: `ends` has room for rows + 1, `data` for all values, `valid` is zero. */
typedef struct {
    int32_t *ends;
    uint8_t *data;
    uint8_t *valid;
    int64_t nulls;
} Binary;

/* A column of the result. It ends with a Binary, whose `data` has SLACK bytes more than all values. For a WHOLE `data` is an
   array of int64, and `ends` is unused. An OBJECT has neither: the columns of its members are `members` ones from number
   `first` on, behind its own. A `coded` column has few texts: `data` has each behind its size (int32), `members` of them in
   `first` bytes, perhaps one several times, and `ends` has the number of each row's. */
typedef struct {
    const char *name;
    int64_t name_size;
    int64_t kind;
    int64_t first;
    int64_t members;
    int64_t coded;
    int32_t *ends;
    uint8_t *data;
    uint8_t *valid;
    int64_t nulls;
} Column;

/* A text that is looked for. */
typedef struct {
    const char *text;
    int64_t text_size;
} Text;

/* Texts of one column, which begin with number `first` of all. Text n of them lies between two of the `bounds` (int64 if
   `wide`, else int32). Without `valid` none is NULL; its bit n is number `bit` + n. */
typedef struct {
    const void *bounds;
    const uint8_t *data;
    const uint8_t *valid;
    int64_t bit;
    int64_t first;
    int64_t wide;
} Texts;

/* What is done to the rows of one table: `members` are of Conversion, of Rule, of ColumnRule or of KeyText. With `only_named`
   members without a Rule are left out; of ColumnRules it is how many columns a row may not leave out, and of KeyTexts how many
   bytes they may have together. */
typedef struct {
    const void *members;
    int64_t count;
    int64_t only_named;
} Plan;

/* A column of texts in a primary key. */
typedef struct {
    const char *name;
    int64_t name_size;
} KeyText;

/* What a value is: KEEP leaves it as it is, ODD has conversions inside, which Python alone knows. An UNSIGNED has 64 bits, in
   a signed number. */
enum ConversionKind {
    CONVERSION_KEEP,
    CONVERSION_ODD,
    CONVERSION_DATE,
    CONVERSION_TIME,
    CONVERSION_TIMESTAMP,
    CONVERSION_ISO_DATE,
    CONVERSION_ISO_TIME,
    CONVERSION_ISO_TIMESTAMP,
    CONVERSION_DECIMAL,
    CONVERSION_VARIABLE_DECIMAL,
    CONVERSION_BITS,
    CONVERSION_DOCUMENT,
    CONVERSION_UNSIGNED,
};

/* How a value is written. `number` is that of the decimals of a second, or the scale; `array` is 1 for an array of such
   values. `bare` is 1 for values that no schema explains: those of another form stay, and a number below 0 explains none. */
typedef struct {
    const char *name;
    int64_t name_size;
    int64_t kind;
    int64_t number;
    int64_t array;
    int64_t bare;
} Conversion;

/* What becomes of a member. DROP leaves it out; HASH writes the SHA-256 of a text and of the value; CUT the first characters,
   `number` of them; CONSTANT the text in place of the value. NAMES is a list of names, and leaves the row to Python if a rule
   is for one of them; ODD leaves it to Python. */
enum RuleKind {
    RULE_KEEP,
    RULE_ODD,
    RULE_DROP,
    RULE_HASH,
    RULE_CUT,
    RULE_CONSTANT,
    RULE_NAMES,
};

/* What is done to a member. With a `to` (a name in quotes and a colon) it is renamed. */
typedef struct {
    const char *name;
    int64_t name_size;
    int64_t kind;
    int64_t number;
    const char *text;
    int64_t text_size;
    const char *to;
    int64_t to_size;
} Rule;

/* What a column holds. ASK leaves each value but NULL to Python. */
enum ColumnKind {
    COLUMN_ANY,
    COLUMN_BOOLEAN,
    COLUMN_INTEGER,
    COLUMN_FLOATING,
    COLUMN_DECIMAL,
    COLUMN_DAY,
    COLUMN_MOMENT,
    COLUMN_TEXT,
    COLUMN_CHAR,
    COLUMN_DOCUMENT,
    COLUMN_ARRAY,
    COLUMN_ASK,
    COLUMN_MAP,
    COLUMN_STRUCT,
    COLUMN_BYTES,
};

/* The rule of a column. `name` is the text in front of a value as most rows write it: a quote, the name, a quote and a colon.
   `number` is the bits of an INTEGER, the decimals of a DECIMAL, or the most bytes of a TEXT, CHAR, DOCUMENT or of BYTES;
   `whole` the digits of a DECIMAL in front of the point, and of BYTES 1 for hexadecimal texts and 0 for base64. A DAY or MOMENT with a zone is written in UTC if `whole` is 0, and asked about
   otherwise. With `nullable` NULL is kept. `needed`: 1 in each row but a delete, 2 in a delete; 3 in both. `inner` has the rule
   of an ARRAY's elements, those of a MAP's keys and values, or those of a STRUCT's fields, of which `number` is how many there
   are. `filler` is the member that a row without the column gets; without one, and with a long one, Python says what is
   missing. With a `base` each row gets one of its own: the last digits of the filler count up. */
typedef struct ColumnRule {
    const char *name;
    int64_t name_size;
    int64_t kind;
    int64_t number;
    int64_t whole;
    int64_t nullable;
    int64_t needed;
    const struct ColumnRule *inner;
    char *filler;
    int64_t filler_size;
    int64_t base;
} ColumnRule;

/* What is found in a row. A DOUBTFUL one may be something else than one JSON object, a NEW one has names of a new shape, and a
   MISFIT is not plainly kept by its table. */
enum RowKind {
    ROW_DOUBTFUL,
    ROW_NEW,
    ROW_MISFIT,
};

/* A type of Avro. `int` is a LONG, for both are written alike. */
enum AvroKind {
    AVRO_NULL,
    AVRO_BOOLEAN,
    AVRO_LONG,
    AVRO_FLOAT,
    AVRO_DOUBLE,
    AVRO_BYTES,
    AVRO_STRING,
    AVRO_FIXED,
    AVRO_ENUM,
    AVRO_ARRAY,
    AVRO_MAP,
    AVRO_UNION,
    AVRO_RECORD,
};

/* A type. The types of its fields, branches, items or symbols are `count` ones from number `first` on. `text` is what comes
   in front of a field (its name and a colon), or a symbol. A FIXED has `count` bytes. */
typedef struct {
    int64_t kind;
    int64_t first;
    int64_t count;
    const char *text;
    int64_t text_size;
} AvroType;

/* The kind of a Protobuf field. */
enum ProtoKind {
    PROTO_BOOL,
    PROTO_INT32,
    PROTO_INT64,
    PROTO_UINT32,
    PROTO_UINT64,
    PROTO_SINT32,
    PROTO_SINT64,
    PROTO_ENUM,
    PROTO_FIXED32,
    PROTO_SFIXED32,
    PROTO_FLOAT,
    PROTO_FIXED64,
    PROTO_SFIXED64,
    PROTO_DOUBLE,
    PROTO_STRING,
    PROTO_BYTES,
    PROTO_MESSAGE,
    PROTO_WRAPPER,
    PROTO_DECIMAL,
    PROTO_DATE,
    PROTO_TIME,
    PROTO_TIMESTAMP,
};

/* What an absent field means: its type's zero, NULL, an error; or that it may come several times. */
enum ProtoLabel {
    LABEL_IMPLICIT,
    LABEL_OPTIONAL,
    LABEL_REQUIRED,
    LABEL_REPEATED,
    LABEL_MAP,
};

/* How a decimal is written: as base64 with the scale of its schema, with its own scale, or as a text for StarRocks. So are
   dates and times, in ISO 8601 but for PLAIN. */
enum ProtoForm {
    FORM_CONNECT,
    FORM_OWN_SCALE,
    FORM_PLAIN,
};

/* A field, or a value of an enum. The fields of its message, or the values of its enum, are `count` ones from `first` on; the
   count of a decimal, a date or a time is its form, and the `first` of a CONNECT decimal its scale. `text` is the name and a
   colon, or a symbol. Of the fields with the same `oneof`, unless it is 0, a message has one at most. */
typedef struct {
    int64_t number;
    int64_t kind;
    int64_t label;
    int64_t first;
    int64_t count;
    int64_t oneof;
    const char *text;
    int64_t text_size;
} ProtoField;

/* A schema of a registry: its parts, and the text in front of the JSON. A part is an AvroType or a ProtoField, and number 0
   is the whole. The text is an object that ends behind the JSON. A message has `header` bytes in front of its value. */
typedef struct {
    const void *parts;
    const char *before;
    int64_t before_size;
    int64_t header;
} MessageSchema;

/* `rd_kafka_message_t` of rdkafka.h, a public type whose layout librdkafka keeps. */
typedef struct {
    int32_t error;
    void *topic;
    int32_t partition;
    const uint8_t *value;
    size_t value_size;
    const uint8_t *key;
    size_t key_size;
    int64_t offset;
    void *of_librdkafka;
} Message;

#endif
