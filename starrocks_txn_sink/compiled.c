/* Loops over rows: members of JSON objects and messages of Kafka into Arrow columns, the names in JSON rows, and values of
   JSON rows rewritten, and messages of Avro and Protobuf as JSON; the package compiled calls them. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif
#include "compiled.h"

#define FIELDS 32
#define PREFIXES 8 /* a batch has the messages of few tables at a time */
#define MOST_SLOTS 65536 /* fields of a message of Protobuf and of those around it: 1.5 MB */

/* TEXT is the content of a string, or the JSON of another value; a STRING is nothing else. A LIST is the JSON of an array. */
enum { ABI = 19, TEXT = 0, NUMBER = 1, STRING = 2, OBJECT = 3, LIST = 4 };

int32_t txn_sink_abi(void) { return ABI; }
int32_t txn_sink_slack(void) { return SLACK; }

static uint8_t *put_utf8(uint8_t *to, uint32_t code) {
    if (code < 0x80) {
        *to++ = (uint8_t)code;
    } else if (code < 0x800) {
        *to++ = (uint8_t)(0xC0 | code >> 6);
        *to++ = (uint8_t)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *to++ = (uint8_t)(0xE0 | code >> 12);
        *to++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *to++ = (uint8_t)(0x80 | (code & 0x3F));
    } else {
        *to++ = (uint8_t)(0xF0 | code >> 18);
        *to++ = (uint8_t)(0x80 | (code >> 12 & 0x3F));
        *to++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *to++ = (uint8_t)(0x80 | (code & 0x3F));
    }
    return to;
}

/* Copy up to the next backslash or the end; `*from` moves there. */
static inline uint8_t *copy_plain(uint8_t *to, Place *from, Place end, Place last) {
    Place p = *from;
#if defined(__SSE2__)
    const __m128i backslash = _mm_set1_epi8('\\');
    while (p < end && p <= last) {
        __m128i block = _mm_loadu_si128((const __m128i *)p);
        int64_t plain = end - p < 16 ? end - p : 16;
        int mask = _mm_movemask_epi8(_mm_cmpeq_epi8(block, backslash));
        _mm_storeu_si128((__m128i *)to, block);
        if (mask && __builtin_ctz((unsigned)mask) < plain) {
            plain = __builtin_ctz((unsigned)mask);
            *from = p + plain;
            return to + plain;
        }
        p += plain;
        to += plain;
    }
#else
    (void)last;
#endif
    while (p < end && *p != '\\') *to++ = *p++;
    *from = p;
    return to;
}

/* Copy the content of a well-formed string without its escapes; NULL for a lone surrogate, which has no UTF-8. */
static uint8_t *unescape(uint8_t *to, Place p, Place end, Place last) {
    for (;;) {
        to = copy_plain(to, &p, end, last);
        if (p >= end) return to;
        uint8_t c = p[1];
        p += 2;
        switch (c) {
        case 'b': *to++ = '\b'; break;
        case 'f': *to++ = '\f'; break;
        case 'n': *to++ = '\n'; break;
        case 'r': *to++ = '\r'; break;
        case 't': *to++ = '\t'; break;
        case 'u': {
            uint32_t code = (uint32_t)hex4(p, end);
            p += 4;
            if (code >= 0xD800 && code < 0xE000) {
                if (code >= 0xDC00 || end - p < 6 || p[0] != '\\' || p[1] != 'u') return NULL;
                uint32_t low = (uint32_t)hex4(p + 2, end);
                if (low < 0xDC00 || low >= 0xE000) return NULL;
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                p += 6;
            }
            to = put_utf8(to, code);
            break;
        }
        default: *to++ = c; /* a quote, a backslash or a slash */
        }
    }
}

/* A column of the result. `ends` has room for rows + 1, `data` for the bytes of all values and SLACK, `valid` is zero.
   For NUMBER `data` is an array of int64, and `ends` is unused. An OBJECT has neither: the columns of its members are
   `members` ones from number `first` on, behind its own. */
typedef struct {
    const char *name;
    int64_t name_size;
    int64_t kind;
    int64_t first;
    int64_t members;
    int32_t *ends;
    uint8_t *data;
    uint8_t *valid;
    int64_t nulls;
} Column;

typedef struct {
    Place start, end;
    int there, escaped;
} Field;

/* The name under which a value may have the object that counts; and texts in front of such objects that were read, each with
   the number of the value that had it first. */
typedef struct {
    const char *name;
    int64_t name_size;
    Place starts[PREFIXES];
    int64_t sizes[PREFIXES];
    int64_t origins[PREFIXES];
    int known, newest;
    int64_t value;  /* the number of the value that is read */
    int64_t origin; /* the first value with the same text around the object that counts; -1 if the value itself counts */
} Wrapper;

static inline int find_column(const Column *columns, int64_t count, int expected, Place name, int64_t size) {
    for (int64_t i = 0; i < count; i++) {
        int n = (int)((expected + i) % count);
        if (columns[n].name_size == size && !memcmp(columns[n].name, name, (size_t)size)) return n;
    }
    return -1;
}

/* Empty the fields of `count` columns from `first` on, and of their members. */
static void forget(const Column *columns, int64_t first, int64_t count, Field *fields) {
    for (int64_t n = first; n < first + count; n++) {
        fields[n].there = 0;
        if (columns[n].kind == OBJECT) forget(columns, columns[n].first, columns[n].members, fields);
    }
}

static Place read_members(Place p, const Bounds *b, const Column *columns, int64_t first, int64_t count, Field *fields);

static inline Place read_field(Place p, const Bounds *b, const Column *columns, int64_t n, Field *fields) {
    const Column *column = &columns[n];
    Field *field = &fields[n];
    int escaped = 0;
    Place start = p;
    field->there = 1;
    field->escaped = 0;
    if (*p == '"' && (column->kind == TEXT || column->kind == STRING)) {
        p = end_of_string(p + 1, b, &escaped);
        if (!p) return NULL;
        field->start = start + 1;
        field->end = p;
        field->escaped = escaped;
        return p + 1;
    }
    if (column->kind == OBJECT) forget(columns, column->first, column->members, fields); /* of a member before with this name */
    if (*p == 'n') {
        field->there = 0;
        return skip_word(p, b, "null", 4);
    }
    switch (column->kind) {
    case TEXT: p = skip_value(p, b); break;
    case NUMBER: p = skip_number(p, b); break;
    case LIST: p = *p == '[' ? skip_value(p, b) : NULL; break;
    case OBJECT: p = *p == '{' ? read_members(p, b, columns, column->first, column->members, fields) : NULL; break;
    default: return NULL;
    }
    field->start = start;
    field->end = p;
    return p;
}

/* Read the members of the object at `p` into the fields of `count` columns from `first` on; the place behind the object, NULL
   outside of the subset. */
static Place read_members(Place p, const Bounds *b, const Column *columns, int64_t first, int64_t count, Field *fields) {
    int expected = 0;
    p = skip_spaces(p + 1, b);
    if (at(p, b) == '}') return p + 1;
    for (;;) {
        int escaped = 0;
        Place name, name_end;
        p = skip_name(p, b, &name, &name_end, &escaped);
        if (!p || escaped || p >= b->end) return NULL;
        int n = find_column(columns + first, count, expected, name, name_end - name);
        if (n >= 0) {
            expected = n + 1;
            p = read_field(p, b, columns, first + n, fields);
        } else {
            p = skip_value(p, b);
        }
        if (!p) return NULL;
        p = skip_spaces(p, b);
        if (at(p, b) == '}') return p + 1;
        if (at(p, b) != ',') return NULL;
        p = skip_spaces(p + 1, b);
    }
}

/* The length of the known text with which the value at `p` begins; 0 if it is new. What follows is the object that counts. */
static int64_t known_prefix(Place p, const Bounds *b, Wrapper *wrapper) {
    for (int i = 0; i < wrapper->known; i++) {
        int n = (wrapper->newest + PREFIXES - i) % PREFIXES;
        int64_t size = wrapper->sizes[n];
        if (b->end - p > size && p[size] == '{' && !memcmp(p, wrapper->starts[n], (size_t)size)) {
            wrapper->origin = wrapper->origins[n];
            return size;
        }
    }
    return 0;
}

static void remember_prefix(Wrapper *wrapper, Place start, int64_t size) {
    wrapper->newest = (wrapper->newest + 1) % PREFIXES;
    wrapper->starts[wrapper->newest] = start;
    wrapper->origins[wrapper->newest] = wrapper->origin = wrapper->value;
    wrapper->sizes[wrapper->newest] = size;
    if (wrapper->known < PREFIXES) wrapper->known++;
}

/* Read one member of a value: of one under the wrapper's name, with an object, the members are the fields; then `*wrapped` is
   set, and members of the value itself count no more. The place behind the member, NULL outside of the subset. */
static Place read_outer(Place p, Place start, const Bounds *b, const Column *columns, int64_t roots, Field *fields,
                        Wrapper *wrapper, int *wrapped) {
    int escaped = 0;
    Place name, name_end;
    p = skip_name(p, b, &name, &name_end, &escaped);
    if (!p || escaped || p >= b->end) return NULL;
    int64_t size = name_end - name;
    if (size != wrapper->name_size || memcmp(name, wrapper->name, (size_t)size)) {
        int n = *wrapped ? -1 : find_column(columns, roots, 0, name, size);
        return n < 0 ? skip_value(p, b) : read_field(p, b, columns, n, fields);
    }
    if (*wrapped) return NULL;
    if (*p == 'n') return skip_word(p, b, "null", 4);
    if (*p != '{') return NULL;
    Place object = p;
    forget(columns, 0, roots, fields);
    p = read_members(p, b, columns, 0, roots, fields);
    if (p) remember_prefix(wrapper, start, object - start);
    *wrapped = 1;
    return p;
}

/* Read a value whose members, or those of an object under the wrapper's name, are the fields; 0 outside of the subset. */
static int read_wrapped(Place start, const Bounds *b, const Column *columns, int64_t roots, Field *fields, Wrapper *wrapper) {
    wrapper->origin = -1;
    int64_t prefix = known_prefix(start, b, wrapper);
    int wrapped = prefix > 0, first = !wrapped;
    Place p;
    if (wrapped) {
        p = read_members(start + prefix, b, columns, 0, roots, fields);
        if (!p) return 0;
    } else {
        p = skip_spaces(start, b);
        if (at(p, b) != '{') return 0;
        p++;
    }
    for (;; first = 0) {
        p = skip_spaces(p, b);
        if (at(p, b) == '}') return skip_spaces(p + 1, b) == b->end;
        if (!first) {
            if (at(p, b) != ',') return 0;
            p = skip_spaces(p + 1, b);
            if (wrapped) wrapper->origin = wrapper->value; /* what follows the object may be its schema */
        }
        p = read_outer(p, start, b, columns, roots, fields, wrapper, &wrapped);
        if (!p) return 0;
    }
}

/* Read the members of one object into `fields`; 0 if the value is outside of the subset. */
static int read_object(Place p, const Bounds *b, const Column *columns, int64_t roots, Field *fields, Wrapper *wrapper) {
    if (wrapper->name) return read_wrapped(p, b, columns, roots, fields, wrapper);
    p = skip_spaces(p, b);
    if (at(p, b) != '{') return 0;
    p = read_members(p, b, columns, 0, roots, fields);
    return p && skip_spaces(p, b) == b->end;
}

/* Append the field to its column; 0 for a lone surrogate, or a number that is not whole. */
static inline int append(Column *column, int64_t row, const Field *field, Place last) {
    if (column->kind == NUMBER) {
        int64_t *to = (int64_t *)column->data + row;
        *to = 0;
        if (field->there && !whole_number(field->start, field->end, to)) return 0;
    } else if (column->kind != OBJECT) {
        uint8_t *to = column->data + column->ends[row];
        if (field->there) {
            to = field->escaped ? unescape(to, field->start, field->end, last)
                                : copy(to, field->start, field->end - field->start, last);
            if (!to) return 0;
        }
        column->ends[row + 1] = (int32_t)(to - column->data);
    }
    if (field->there)
        column->valid[row >> 3] |= (uint8_t)(1u << (row & 7));
    else
        column->nulls++;
    return 1;
}

/* Take the first `count` fields of an unfinished row out of their columns again. */
static void take_back(Column *columns, int64_t row, const Field *fields, int64_t count) {
    for (int64_t n = 0; n < count; n++) {
        if (fields[n].there)
            columns[n].valid[row >> 3] &= (uint8_t)~(1u << (row & 7));
        else
            columns[n].nulls--;
    }
}

/* Read the `wanted` ones of the values from `*next` to `values`, each between two of the `bounds` (int64 if `wide`, else
   int32), into the rows from `row` on; returns the number of rows then. `*next` becomes the first value outside of the
   subset, or `values`. The data has less than 2 GiB. The first `roots` of the `count` columns are members of the value, or of
   the object under the name `wrapper`, unless this is NULL or the value has no such object. With a wrapper `origins` has
   each row's number of the first value with the same text around its object, -1 for a row without one. */
int64_t txn_sink_read(const void *bounds, int32_t wide, const uint8_t *data, const uint8_t *wanted, int64_t values,
                      Column *columns, int64_t count, int64_t roots, const char *wrapper, int64_t *origins, int64_t row,
                      int64_t *next) {
    const int32_t *narrow_bounds = bounds;
    const int64_t *wide_bounds = bounds;
    Field fields[FIELDS];
    Wrapper wrapped = {.name = wrapper, .name_size = wrapper ? (int64_t)strlen(wrapper) : 0};
    if (count < 1 || count > FIELDS) return -1;
#define BOUND(n) (wide ? wide_bounds[n] : (int64_t)narrow_bounds[n])
    Place last = data + BOUND(values) - 16;
    int64_t value = *next;
    for (int64_t n = 0; !row && n < count; n++)
        if (columns[n].ends) columns[n].ends[0] = 0;
    for (; value < values; value++) {
        Bounds b = {data + BOUND(value + 1), last};
        int64_t filled = 0;
        if (!wanted[value]) continue;
        wrapped.value = value;
        for (int64_t n = 0; n < count; n++) fields[n].there = 0;
        if (!read_object(data + BOUND(value), &b, columns, roots, fields, &wrapped)) break;
        while (filled < count && append(&columns[filled], row, &fields[filled], last)) filled++;
        if (filled < count) {
            take_back(columns, row, fields, filled);
            break;
        }
        if (wrapper) origins[row] = wrapped.origin;
        row++;
    }
#undef BOUND
    *next = value;
    return row;
}

/* The names in JSON rows. */

#define PATTERNS 64 /* of so many tables at a time */
#define PIECES 128 /* a row of more members has no pattern */
#define QUOTES (4 * PIECES + 64)

static inline uint64_t mix(uint64_t shape, Place p, int64_t size) {
    uint64_t word;
    shape = (shape ^ (uint64_t)size) * 0x9E3779B97F4A7C15u;
    for (; size >= 8; size -= 8, p += 8) {
        memcpy(&word, p, 8);
        shape = (shape ^ word) * 0xD6E8FEB86659FD93u;
        shape ^= shape >> 32;
    }
    word = 0;
    if (size >= 4) { /* all bytes, some of them twice */
        uint32_t first, last;
        memcpy(&first, p, 4);
        memcpy(&last, p + size - 4, 4);
        word = (uint64_t)first << 32 | last;
    } else if (size) {
        word = (uint64_t)p[0] << 16 | (uint64_t)p[size / 2] << 8 | p[size - 1];
    }
    shape = (shape ^ word) * 0xD6E8FEB86659FD93u;
    return shape ^ shape >> 32;
}

/* The text between two values of a row, with a name in it: its place and size in the row, and how far in the name's quote is. */
typedef struct {
    uint32_t start, mask;
    uint16_t size, name;
} Piece;

/* The texts of one row in front of its values: `count` of them, 0 for too many. A row with the same texts has the same names,
   and this is quicker to find out than its shape. */
typedef struct {
    uint64_t table;
    Place row;
    int64_t count;
    Piece pieces[PIECES];
} Pattern;

static inline int add_piece(Pattern *pattern, Place start, Place name, Place end) {
    if (pattern->count == PIECES || end - start > UINT16_MAX || end - pattern->row > UINT32_MAX) return 0;
    uint32_t mask = end - start < 16 ? (1u << (end - start)) - 1 : 0xFFFF;
    pattern->pieces[pattern->count++] = (Piece){(uint32_t)(start - pattern->row), mask, (uint16_t)(end - start), (uint16_t)(name - start)};
    return 1;
}

static inline int is_same(Place p, Place other, const Piece *piece) {
#if defined(__SSE2__)
    __m128i block = _mm_loadu_si128((const __m128i *)p), others = _mm_loadu_si128((const __m128i *)other);
    if (~(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(block, others)) & piece->mask) return 0;
    if (piece->size <= 16) return 1;
#endif
    return !memcmp(p, other, piece->size);
}

/* A bit for each quote among 64 bytes, the first one lowest. */
static inline uint64_t quotes_among(Place p, int *escapes) {
    uint64_t quotes = 0;
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\');
    __m128i escaping = _mm_setzero_si128();
    for (int i = 0; i < 64; i += 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)(p + i));
        quotes |= (uint64_t)(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(block, quote)) << i;
        escaping = _mm_or_si128(escaping, _mm_cmpeq_epi8(block, backslash));
    }
    *escapes = _mm_movemask_epi8(escaping);
#else
    *escapes = 0;
    for (int i = 0; i < 64; i++) {
        quotes |= (uint64_t)(p[i] == '"') << i;
        *escapes |= p[i] == '\\';
    }
#endif
    return quotes;
}

/* A bit for each of 64 bytes that is escaped; `*first` says whether the first one is, and then the first one behind them. */
static uint64_t escaped_among(Place p, uint64_t *first) {
    uint64_t escaped = *first;
    for (int i = 0; i < 63; i++)
        if (p[i] == '\\' && !(escaped >> i & 1)) escaped |= (uint64_t)2 << i;
    *first = p[63] == '\\' && !(escaped >> 63);
    return escaped;
}

/* Write where the row has quotes that are not escaped; returns how many, -1 if that is not quickly seen. */
static int64_t find_quotes(Place row, const Bounds *b, uint32_t *places) {
    int64_t size = b->end - row, count = 0;
    uint64_t escaped = 0;
    if (size > UINT32_MAX || ((size + 63) & ~(int64_t)63) > b->last - row) return -1;
    for (int64_t offset = 0; offset < size; offset += 64) {
        int escapes;
        uint64_t quotes = quotes_among(row + offset, &escapes);
        if (escapes | (int)escaped) quotes &= ~escaped_among(row + offset, &escaped);
        if (size - offset < 64) quotes &= ((uint64_t)1 << (size - offset)) - 1;
        if (count > QUOTES - 64) return -1;
        for (; quotes; quotes &= quotes - 1) places[count++] = (uint32_t)offset + (uint32_t)__builtin_ctzll(quotes);
    }
    return count;
}

/* Whether the row has the pattern's texts, each with the row's next quote outside of values. Values are not judged: if one is
   malformed, so is the row, and the server rejects it. */
static int has_pattern(Place row, const Bounds *b, const Pattern *pattern) {
    uint32_t quotes[QUOTES];
    int64_t count = find_quotes(row, b, quotes), next = 0, size = b->end - row;
    for (const Piece *piece = pattern->pieces; piece < pattern->pieces + pattern->count; piece++) {
        if (next >= count) return 0;
        int64_t start = (int64_t)quotes[next] - piece->name, value = start + piece->size;
        if (start < 0 || value >= size || !is_same(row + start, pattern->row + piece->start, piece)) return 0;
        uint8_t first = row[value];
        next += first == '"' ? 4 : 2;
        if ((first | 0x20) == '{') { /* or a bracket: it may have quotes, too */
            Place end = skip_value(row + value, b);
            if (!end) return 0;
            while (next < count && quotes[next] < end - row) next++;
        }
    }
    return count && next == count;
}

/* The hash of a row's names in their order, continued from `shape`; 0 for a row that is not one plain object. `*pattern`
   becomes the row's. */
static uint64_t shape_of(Place p, const Bounds *b, uint64_t shape, Pattern *pattern) {
    int simple = 1;
    Place piece = p;
    pattern->row = p;
    pattern->count = 0;
    p = skip_spaces(p, b);
    if (at(p, b) != '{') return 0;
    p = skip_spaces(p + 1, b);
    if (at(p, b) != '}') {
        for (;;) {
            int escaped = 0;
            Place name, name_end;
            p = skip_name(p, b, &name, &name_end, &escaped);
            if (!p || p >= b->end) return 0;
            shape = mix(shape, name, name_end - name);
            simple = simple && add_piece(pattern, piece, name - 1, p);
            piece = p = skip_value(p, b);
            if (!p) return 0;
            p = skip_spaces(p, b);
            if (at(p, b) == '}') break;
            if (at(p, b) != ',') return 0;
            p = skip_spaces(p + 1, b);
        }
    }
    if (skip_spaces(p + 1, b) != b->end) return 0;
    if (!simple) pattern->count = 0;
    return shape | 1;
}

/* Whether `shape` is new; a new one goes into `seen`, a hash table of `mask` + 1 places that is filled to one half. */
static int is_new(uint64_t shape, uint64_t *seen, int64_t mask, int64_t *used) {
    int64_t place = (int64_t)(shape >> 1) & mask;
    for (; seen[place]; place = (place + 1) & mask)
        if (seen[place] == shape) return 0;
    if (*used <= mask / 2) {
        seen[place] = shape;
        ++*used;
    }
    return 1;
}

/* Write the numbers of the JSON rows with a new shape (their table and their names) to `found`, and of each row that is
   not one plain object; returns how many there are. Texts lie between `bounds` as in txn_sink_read. */
int64_t txn_sink_new_shapes(const void *bounds, int32_t wide, const uint8_t *data, const void *table_bounds,
                            int32_t table_wide, const uint8_t *tables, int64_t rows, uint64_t *seen, int64_t mask,
                            int64_t *used, int64_t *found) {
    const int32_t *narrow_bounds = bounds, *narrow_tables = table_bounds;
    const int64_t *wide_bounds = bounds, *wide_tables = table_bounds;
    int64_t count = 0;
#define BOUND(n) (wide ? wide_bounds[n] : (int64_t)narrow_bounds[n])
#define TABLE(n) (table_wide ? wide_tables[n] : (int64_t)narrow_tables[n])
    Place last = data + BOUND(rows) - 16;
    Pattern patterns[PATTERNS];
    for (int64_t n = 0; n < PATTERNS; n++) patterns[n].table = (uint64_t)(patterns[n].count = 0);
    for (int64_t row = 0; row < rows; row++) {
        Place start = data + BOUND(row);
        Bounds b = {data + BOUND(row + 1), last};
        if (at(start, &b) != SEPARATOR) continue;
        uint64_t table = mix(0, tables + TABLE(row), TABLE(row + 1) - TABLE(row));
        Pattern *pattern = &patterns[table % PATTERNS];
        if (pattern->table == table && has_pattern(start + 1, &b, pattern)) continue;
        uint64_t shape = shape_of(start + 1, &b, table, pattern);
        pattern->table = table;
        if (!shape) pattern->count = 0; /* of a part of the row */
        if (!shape || is_new(shape, seen, mask, used)) found[count++] = row;
    }
#undef TABLE
#undef BOUND
    return count;
}

/* Rows that are JSON objects. */

#define OWN_OP "__op"
#define DELETING "{\"" OWN_OP "\":1" /* in place of a deleted row's opening brace */

static inline int is_text(Place p, int64_t size, const char *text) {
    return size == (int64_t)strlen(text) && !memcmp(p, text, (size_t)size);
}

/* Whether a row, which is JSON, has half of a pair of surrogates: a backslash is always inside a string there. */
static int has_lone_surrogate(Place p, Place end) {
    while ((p = memchr(p, '\\', (size_t)(end - p)))) {
        if (p[1] != 'u') {
            p += 2;
            continue;
        }
        int32_t code = hex4(p + 2, end);
        p += 6;
        if (code < 0xD800 || code > 0xDFFF) continue;
        if (code > 0xDBFF || end - p < 6 || p[0] != '\\' || p[1] != 'u') return 1;
        code = hex4(p + 2, end);
        if (code < 0xDC00 || code > 0xDFFF) return 1;
        p += 6;
    }
    return 0;
}

/* Whether the row is surely one JSON object without the name OWN_OP, which a deleted row has in front. */
static int is_plain_object(Place row, const Bounds *b, int deleted) {
    Place p = row;
    int opened = deleted && b->end - p > (int64_t)strlen(DELETING) && !memcmp(p, DELETING, strlen(DELETING));
    if (opened) {
        p = skip_spaces(p + strlen(DELETING), b);
        if (at(p, b) == ',') p++;
        else if (at(p, b) != '}') return 0;
    } else {
        p = skip_spaces(p, b);
        if (at(p, b) != '{') return 0;
        p++;
    }
    p = skip_spaces(p, b);
    if (at(p, b) == '}') {
        if (opened && p[-1] == ',') return 0;
    } else {
        for (;;) {
            int escaped = 0;
            Place name, name_end;
            p = skip_name(p, b, &name, &name_end, &escaped);
            if (!p || escaped || is_text(name, name_end - name, OWN_OP)) return 0;
            p = skip_value(p, b);
            if (!p) return 0;
            p = skip_spaces(p, b);
            if (at(p, b) == '}') break;
            if (at(p, b) != ',') return 0;
            p = skip_spaces(p + 1, b);
        }
    }
    return skip_spaces(p + 1, b) == b->end && !has_lone_surrogate(row, b->end);
}

/* Write the numbers of the rows to `found` that may be something else than one JSON object; returns how many there are.
   Texts lie between `bounds` as in txn_sink_read; `deleted` has a byte a row, NULL: none is deleted. */
int64_t txn_sink_doubtful_rows(const void *bounds, int32_t wide, const uint8_t *data, const uint8_t *deleted,
                               int64_t rows, int64_t *found) {
    const int32_t *narrow_bounds = bounds;
    const int64_t *wide_bounds = bounds;
    int64_t count = 0;
#define BOUND(n) (wide ? wide_bounds[n] : (int64_t)narrow_bounds[n])
    Place last = data + BOUND(rows) - 16;
    for (int64_t row = 0; row < rows; row++) {
        Bounds b = {data + BOUND(row + 1), last};
        Place start = data + BOUND(row);
        if (at(start, &b) != SEPARATOR || !is_plain_object(start + 1, &b, deleted && deleted[row])) found[count++] = row;
    }
#undef BOUND
    return count;
}

/* A column of texts in a primary key. */
typedef struct {
    const char *name;
    int64_t name_size;
} KeyText;

/* Whether the texts of a row's key may have more bytes than they may have, or the row is not plain. Escapes are longer than
   what they stand for. Of members of one name the first counts. */
static int may_have_long_key(Place p, const Bounds *b, const Plan *plan) {
    const KeyText *texts = plan->members;
    int64_t room = plan->only_named, left = plan->count;
    uint64_t met = 0;
    if (b->end - p <= room) return 0;
    if (at(p, b) != '{') return 1;
    p = skip_spaces(p + 1, b);
    while (at(p, b) != '}') {
        Place name, name_end, value;
        int escaped = 0;
        value = skip_name(p, b, &name, &name_end, &escaped);
        if (!value || escaped) return 1;
        p = skip_value(value, b);
        if (!p) return 1;
        for (int64_t n = 0; n < plan->count; n++) {
            if (name_end - name != texts[n].name_size || memcmp(name, texts[n].name, (size_t)texts[n].name_size)) continue;
            if (met >> n & 1) break;
            met |= (uint64_t)1 << n;
            room -= p - value - (*value == '"' ? 2 : 0);
            if (room < 0) return 1;
            if (!--left) return 0;
            break;
        }
        p = skip_spaces(p, b);
        if (at(p, b) != ',') return at(p, b) != '}';
        p = skip_spaces(p + 1, b);
    }
    return 0;
}

/* Write the numbers of the rows to `found` whose key may be too long by their plan (`chosen`; -1: none); returns how many
   there are. Texts lie between `bounds` as in txn_sink_read. */
int64_t txn_sink_long_keys(const void *bounds, int32_t wide, const uint8_t *data, const Plan *plans, const int32_t *chosen,
                           int64_t rows, int64_t *found) {
    const int32_t *narrow_bounds = bounds;
    const int64_t *wide_bounds = bounds;
    int64_t count = 0;
#define BOUND(n) (wide ? wide_bounds[n] : (int64_t)narrow_bounds[n])
    Place last = data + BOUND(rows) - 16;
    for (int64_t row = 0; row < rows; row++) {
        Bounds b = {data + BOUND(row + 1), last};
        Place start = data + BOUND(row);
        if (chosen[row] < 0) continue;
        if (at(start, &b) != SEPARATOR || may_have_long_key(start + 1, &b, &plans[chosen[row]])) found[count++] = row;
    }
#undef BOUND
    return count;
}

/* Values of JSON rows, rewritten. */

#define MOST_DIGITS 160  /* of a decimal number that is written here, and of zeros around it */
#define MOST_BYTES 64    /* of its two's complement */
/* What a value is: KEEP leaves it as it is, ODD leaves the row to Python. The number is that of the decimals of a second, or
   the scale. */
enum { KEEP = 0, ODD = 1, DATE = 2, TIME = 3, TIMESTAMP = 4, ISO_DATE = 5, ISO_TIME = 6, ISO_TIMESTAMP = 7, DECIMAL = 8,
       VARIABLE_DECIMAL = 9, BITS = 10, DOCUMENT = 11, UNSIGNED = 12 };

typedef struct {
    const char *name;
    int64_t name_size;
    int64_t kind;
    int64_t number;
    int64_t array; /* 1 for an array of such values */
    int64_t bare;  /* 1 for values that no schema explains: those of another form stay, and a number below 0 explains none */
} Conversion;

/* The least and the greatest value of PostgreSQL's infinity as Debezium writes it: days, and microseconds of a timestamp. */
#define DATE_INFINITY (-2147472692)
#define DATE_MINUS_INFINITY (-2147472691)
/* In a snapshot: the days of PostgreSQL's infinite Java dates, in the zone of the connector, as far as 32 bits have them. */
#define SNAPSHOT_INFINITY (-622191234)
#define SNAPSHOT_MINUS_INFINITY (-625821272)
#define MICROS_INFINITY 9223372036825200000
#define MICROS_MINUS_INFINITY (-9223372036832400000)
/* The days of the years 1 to 9999. */
#define FIRST_DAY (-719162)
#define LAST_DAY 2932896

/* Hours, minutes, seconds, and 6 or 9 decimals where there are any. */
static uint8_t *put_clock(uint8_t *to, uint64_t seconds, int64_t nanos) {
    to = put_number(to, seconds / 3600, 2);
    *to++ = ':';
    to = put_number(to, seconds / 60 % 60, 2);
    *to++ = ':';
    to = put_number(to, seconds % 60, 2);
    if (!nanos) return to;
    *to++ = '.';
    return nanos % 1000 ? put_number(to, (uint64_t)nanos, 9) : put_number(to, (uint64_t)nanos / 1000, 6);
}

static int64_t power_of_10(int64_t exponent) {
    int64_t power = 1;
    while (exponent-- > 0) power *= 10;
    return power;
}

static uint8_t *put_time(uint8_t *to, int64_t value, int64_t decimals) {
    uint64_t unit = (uint64_t)power_of_10(decimals), size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (value < 0) *to++ = '-';
    return put_clock(to, size / unit, (int64_t)(size % unit) * power_of_10(9 - decimals));
}

static uint8_t *put_timestamp(uint8_t *to, int64_t seconds, int64_t nanos) {
    int64_t days = seconds / 86400 - (seconds % 86400 < 0);
    to = put_date(to, days);
    *to++ = ' ';
    return put_clock(to, (uint64_t)(seconds - days * 86400), nanos);
}

/* 1 for the days of infinity, -1 for those of -infinity, else 0; no source has dates there. */
static int infinite_day(int64_t days) {
    int64_t low = (int32_t)(uint32_t)(uint64_t)days;
    if (low == DATE_INFINITY || (low >= SNAPSHOT_INFINITY - 1 && low <= SNAPSHOT_INFINITY + 1)) return 1;
    if (low == DATE_MINUS_INFINITY || (low >= SNAPSHOT_MINUS_INFINITY - 1 && low <= SNAPSHOT_MINUS_INFINITY + 1)) return -1;
    return 0;
}

static uint8_t *put_infinity(uint8_t *to, int negative) { return put_text(to, negative ? "-infinity" : "infinity"); }

static uint8_t *put_unix_time(uint8_t *to, int64_t value, int64_t decimals) {
    int64_t unit = power_of_10(decimals), micros = power_of_10(6 - decimals); /* of nanoseconds infinity is none: too large */
    if (decimals <= 6 && (value == MICROS_INFINITY / micros || value == MICROS_MINUS_INFINITY / micros))
        return put_infinity(to, value < 0);
    int64_t rest = value % unit, earlier = rest < 0;
    return put_timestamp(to, value / unit - earlier, (rest + earlier * unit) * power_of_10(9 - decimals));
}

/* The number of `digits` digits at `*p`, which moves behind them; -1 if there are none. */
static int64_t take_digits(Place *p, Place end, int digits) {
    int64_t number = 0;
    if (end - *p < digits) return -1;
    for (; digits; digits--, ++*p) {
        if (!is_digit(**p)) return -1;
        number = number * 10 + (**p - '0');
    }
    return number;
}

static int take(Place *p, Place end, char character) {
    if (*p >= end || **p != (uint8_t)character) return 0;
    ++*p;
    return 1;
}

/* Read `YYYY-MM-DD`, with a sign and more digits beyond the year 9999 or before 0; 0 for any other text. */
static int take_date(Place *p, Place end, int64_t *days) {
    int negative = take(p, end, '-'), signs = negative || take(p, end, '+'), digits = 0;
    while (*p + digits < end && digits < 10 && is_digit((*p)[digits])) digits++;
    if (digits < 4 || digits > 9 || (digits > 4 && !signs)) return 0;
    int64_t year = take_digits(p, end, digits), month, day;
    if (!take(p, end, '-') || (month = take_digits(p, end, 2)) < 1 || month > 12) return 0;
    if (!take(p, end, '-') || (day = take_digits(p, end, 2)) < 1 || day > 31) return 0;
    *days = day_of(negative ? -year : year, (int)month, (int)day);
    return 1;
}

/* Read `HH:MM:SS`, perhaps with decimals, up to 9; 0 for any other text. */
static int take_clock(Place *p, Place end, int64_t *seconds, int64_t *nanos) {
    int64_t hour = take_digits(p, end, 2), minute, second;
    if (hour < 0 || hour > 23 || !take(p, end, ':') || (minute = take_digits(p, end, 2)) < 0 || minute > 59) return 0;
    if (!take(p, end, ':') || (second = take_digits(p, end, 2)) < 0 || second > 59) return 0;
    *seconds = hour * 3600 + minute * 60 + second;
    *nanos = 0;
    if (!take(p, end, '.')) return 1;
    int digits = 0;
    while (*p + digits < end && digits < 10 && is_digit((*p)[digits])) digits++;
    if (!digits || digits > 9) return 0;
    *nanos = take_digits(p, end, digits) * power_of_10(9 - digits);
    return 1;
}

/* Read `Z` or `+HH:MM` at the end of a text; 0 for any other text. */
static int take_offset(Place *p, Place end, int64_t *seconds) {
    int64_t hour, minute;
    *seconds = 0;
    if (take(p, end, 'Z')) return *p == end;
    int negative = take(p, end, '-');
    if (!negative && !take(p, end, '+')) return 0;
    if ((hour = take_digits(p, end, 2)) < 0 || hour > 18) return 0;
    if (!take(p, end, ':') || (minute = take_digits(p, end, 2)) < 0 || minute > 59) return 0;
    *seconds = (hour * 3600 + minute * 60) * (negative ? -1 : 1);
    return *p == end;
}

/* Write the text between two quotes, of kind ISO_DATE, ISO_TIME or ISO_TIMESTAMP; NULL for any other text. */
static uint8_t *put_iso(uint8_t *to, Place p, Place end, int64_t kind) {
    int64_t days = 0, seconds = 0, nanos = 0, offset;
    if (kind != ISO_TIME && !take_date(&p, end, &days)) return NULL;
    if (kind == ISO_TIMESTAMP && !take(&p, end, 'T')) return NULL;
    if (kind != ISO_DATE && !take_clock(&p, end, &seconds, &nanos)) return NULL;
    if (!take_offset(&p, end, &offset) || (kind != ISO_TIMESTAMP && offset)) return NULL;
    if (kind == ISO_TIME) return put_clock(to, (uint64_t)seconds, nanos);
    if (kind == ISO_DATE) {
        return infinite_day(days) ? put_infinity(to, infinite_day(days) < 0) : put_date(to, days);
    }
    seconds += days * 86400 - offset;
    if (seconds == MICROS_INFINITY / 1000000 && nanos == 200000000) return put_infinity(to, 0);
    if (seconds == MICROS_MINUS_INFINITY / 1000000 - 1 && nanos == 600000000) return put_infinity(to, 1);
    return put_timestamp(to, seconds, nanos);
}

static inline int base64_digit(uint8_t c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (is_digit(c)) return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* The number of bytes that the base64 between two quotes has; -1 for another text, for no byte and for more than MOST_BYTES. */
static int from_base64(Place p, Place end, uint8_t *bytes) {
    int64_t size = end - p;
    int count = 0;
    if (!size || size % 4 || size / 4 * 3 > MOST_BYTES + 2) return -1;
    int padding = (end[-1] == '=') + (end[-1] == '=' && end[-2] == '=');
    for (; p < end; p += 4) {
        uint32_t group = 0;
        int last = p + 4 == end ? padding : 0;
        for (int i = 0; i < 4; i++) {
            int digit = i >= 4 - last ? 0 : base64_digit(p[i]);
            if (digit < 0) return -1;
            group = group << 6 | (uint32_t)digit;
        }
        if (last && group & (last == 1 ? 0xFFu : 0xFFFFu)) return -1; /* bits that no byte has */
        for (int i = 0; i < 3 - last; i++) bytes[count++] = (uint8_t)(group >> (16 - 8 * i));
    }
    return count <= MOST_BYTES ? count : -1;
}

/* Write an unsigned number, whose most significant byte is the first, with so many decimals; the number is used up. */
static uint8_t *put_bytes_as_number(uint8_t *to, uint8_t *bytes, int count, int64_t scale) {
    uint8_t digits[MOST_DIGITS + 9];
    int size = 0, first = 0;
    while (first < count) { /* divide by 1000 again and again: the remainders are the digits */
        uint32_t rest = 0;
        for (int i = first; i < count; i++) {
            rest = rest << 8 | bytes[i];
            bytes[i] = (uint8_t)(rest / 1000);
            rest %= 1000;
        }
        for (int i = 0; i < 3; i++, rest /= 10) digits[size++] = (uint8_t)('0' + rest % 10);
        while (first < count && !bytes[first]) first++;
    }
    while (size && digits[size - 1] == '0') size--;
    int zero = !size;
    if (zero) digits[size++] = '0';
    for (int64_t place = scale < 0 || size > scale ? size : scale + 1; place > 0; place--) {
        *to++ = place > size ? '0' : digits[place - 1];
        if (place - 1 == scale && scale > 0) *to++ = '.';
    }
    for (; scale < 0 && !zero; scale++) *to++ = '0';
    return to;
}

/* Write a number in two's complement with so many decimals; the bytes are used up. */
static uint8_t *put_signed_bytes(uint8_t *to, uint8_t *bytes, int count, int64_t scale) {
    if (bytes[0] >= 0x80) {
        int carry = 1;
        for (int i = count - 1; i >= 0; i--) {
            int byte = (uint8_t)~bytes[i] + carry;
            bytes[i] = (uint8_t)byte;
            carry = byte >> 8;
        }
        *to++ = '-';
    }
    return put_bytes_as_number(to, bytes, count, scale);
}

static uint8_t *put_decimal(uint8_t *to, Place p, Place end, int64_t scale) {
    uint8_t bytes[MOST_BYTES + 2];
    int count = from_base64(p, end, bytes);
    if (count < 0 || scale > MOST_DIGITS || scale < -MOST_DIGITS) return NULL;
    return put_signed_bytes(to, bytes, count, scale);
}

/* Write bits, of which the first byte has the least significant ones, as a whole number. */
static uint8_t *put_bits(uint8_t *to, Place p, Place end) {
    uint8_t bytes[MOST_BYTES + 2];
    int count = from_base64(p, end, bytes);
    if (count < 0) return NULL;
    for (int i = 0; i < count / 2; i++) {
        uint8_t byte = bytes[i];
        bytes[i] = bytes[count - 1 - i];
        bytes[count - 1 - i] = byte;
    }
    return put_bytes_as_number(to, bytes, count, 0);
}

/* Write an object with the members `scale` and `value`; NULL outside of the subset. `*p` moves behind it. */
static uint8_t *put_variable_decimal(uint8_t *to, Place *p, const Bounds *b) {
    Place name, name_end, start = NULL, end = NULL;
    int64_t scale = 0;
    int scales = 0, escaped = 0;
    if (at(*p, b) != '{') return NULL;
    *p = skip_spaces(*p + 1, b);
    for (;;) {
        *p = skip_name(*p, b, &name, &name_end, &escaped);
        if (!*p || escaped) return NULL;
        if (name_end - name != 5) return NULL;
        if (!memcmp(name, "scale", 5)) {
            Place number = *p;
            *p = skip_number(*p, b);
            if (!*p || scales++ || !whole_number(number, *p, &scale)) return NULL;
        } else {
            if (memcmp(name, "value", 5) || start || at(*p, b) != '"') return NULL;
            start = *p + 1;
            end = end_of_string(start, b, &escaped);
            if (!end || escaped) return NULL;
            *p = end + 1;
        }
        *p = skip_spaces(*p, b);
        if (at(*p, b) == '}') break;
        if (at(*p, b) != ',') return NULL;
        *p = skip_spaces(*p + 1, b);
    }
    ++*p;
    return start && scales ? put_decimal(to, start, end, scale) : NULL;
}

/* Write the document whose text is the string at `*p`, or the value there that is no string; NULL if it is none. `*full` says
   that there was no room. */
static uint8_t *put_document(uint8_t *to, const uint8_t *most, Place *p, const Bounds *b, int *full) {
    int escaped = 0;
    Place start = *p + 1;
    int quoted = at(*p, b) == '"';
    Place end = quoted ? end_of_string(start, b, &escaped) : skip_value(*p, b);
    if (!end) return NULL;
    if (most - to < end - *p + ROOM_A_VALUE) {
        *full = 1;
        return NULL;
    }
    if (!quoted) {
        to = copy(to, *p, end - *p, b->last);
        *p = end;
        return to;
    }
    uint8_t *written = escaped ? unescape(to, start, end, b->last) : copy(to, start, end - start, b->last);
    if (!written) return NULL;
    Bounds text = {written, written - 16};
    Place after = skip_value(skip_spaces(to, &text), &text);
    *p = end + 1;
    return after && skip_spaces(after, &text) == written ? written : NULL;
}

/* Rewrite one value; NULL outside of the subset. `*p` moves behind it. */
static uint8_t *put_value(uint8_t *to, Place *p, const Bounds *b, const Conversion *as) {
    Place start = *p;
    int64_t number;
    int escaped = 0;
    if (at(start, b) == 'n') {
        *p = skip_word(start, b, "null", 4);
        return *p ? put_text(to, "null") : NULL;
    }
    if (as->kind == DECIMAL && at(start, b) != '"') { /* the converter's decimal.format is NUMERIC */
        *p = skip_number(start, b);
        return *p && *p - start <= MOST_DIGITS ? copy(to, start, *p - start, b->last) : NULL;
    }
    if (as->kind != BITS) *to++ = '"';
    switch (as->kind) {
    case DATE: case TIME: case TIMESTAMP:
        *p = skip_number(start, b);
        if (!*p || !whole_number(start, *p, &number)) return NULL;
        if (as->bare && (as->number < 0 || (as->kind == TIMESTAMP && number && number >= FIRST_DAY && number <= LAST_DAY)))
            return NULL;
        if (as->kind == TIME)
            to = put_time(to, number, as->number);
        else if (as->kind == TIMESTAMP)
            to = put_unix_time(to, number, as->number);
        else if (number < INT32_MIN || number > INT32_MAX)
            return NULL;
        else if (infinite_day(number))
            to = put_infinity(to, infinite_day(number) < 0);
        else
            to = put_date(to, number);
        break;
    case VARIABLE_DECIMAL:
        to = put_variable_decimal(to, p, b);
        break;
    default:
        if (at(start, b) != '"') return NULL;
        *p = end_of_string(start + 1, b, &escaped);
        if (!*p || escaped) return NULL;
        to = as->kind == DECIMAL ? put_decimal(to, start + 1, *p, as->number)
             : as->kind == BITS  ? put_bits(to, start + 1, *p)
                                 : put_iso(to, start + 1, *p, as->kind);
        ++*p;
    }
    if (to && as->kind != BITS) *to++ = '"';
    return to;
}

/* Whether a string may be bytes: Python judges it then. */
static int may_be_base64(Place p, const Bounds *b) {
    int escaped = 0;
    Place start = p, end = end_of_string(p, b, &escaped);
    if (!end || escaped) return 1;
    for (; p < end; p++)
        if (*p != '=' && base64_digit(*p) < 0) return 0;
    return (end - start) % 4 == 0;
}

/* Whether a value stays as it is. */
static int stays(const Conversion *as, Place p, const Bounds *b) {
    uint8_t first = at(p, b);
    if (as->kind == UNSIGNED) return first != '-'; /* Python writes the others, which are rare */
    if (!as->bare) return 0;
    if (as->kind != VARIABLE_DECIMAL) return first != '-' && (first < '0' || first > '9');
    return first == '"' ? !may_be_base64(p + 1, b) : first != '{';
}

/* A PutRow for plans of Conversions; a comma may stand in front of the row. */
static uint8_t *put_converted(uint8_t *to, const uint8_t *most, Place p, const Bounds *b, const Plan *plan, int *full) {
    const Conversion *members = plan->members;
    Place copied = p;
    int64_t expected = 0;
    p = skip_spaces(at(p, b) == ',' ? p + 1 : p, b);
    if (at(p, b) != '{') return NULL;
    p = skip_spaces(p + 1, b);
    for (int first = 1; at(p, b) != '}'; first = 0) {
        int escaped = 0, array;
        Place name, name_end;
        if (!first) {
            if (at(p, b) != ',') return NULL;
            p = skip_spaces(p + 1, b);
        }
        p = skip_name(p, b, &name, &name_end, &escaped);
        if (!p || escaped) return NULL;
        const Conversion *as = NULL;
        for (int64_t i = 0; i < plan->count && !as; i++) {
            const Conversion *member = &members[(expected + i) % plan->count];
            if (member->name_size == name_end - name && !memcmp(member->name, name, (size_t)member->name_size)) {
                as = member;
                expected = (expected + i + 1) % plan->count;
            }
        }
        if (!as || as->kind == KEEP) {
            p = skip_value(p, b);
            if (!p) return NULL;
            p = skip_spaces(p, b);
            continue;
        }
        if (as->kind == ODD) return NULL;
        array = as->array && at(p, b) == '[';
        if (as->array && !array && at(p, b) != 'n') return NULL;
        if (array) p = skip_spaces(p + 1, b);
        for (int empty = array && at(p, b) == ']';;) {
            if (!empty && stays(as, p, b)) {
                p = skip_value(p, b);
                if (!p) return NULL;
            } else {
                if (most - to < p - copied + ROOM_A_VALUE) {
                    *full = 1;
                    return NULL;
                }
                to = copy(to, copied, p - copied, b->last);
                if (!empty) to = as->kind == DOCUMENT ? put_document(to, most, &p, b, full) : put_value(to, &p, b, as);
                if (!to) return NULL;
                copied = p;
            }
            if (!array) break;
            p = skip_spaces(p, b);
            if (at(p, b) == ']') {
                p++;
                break;
            }
            if (at(p, b) != ',' || empty) return NULL;
            p = skip_spaces(p + 1, b);
        }
        p = skip_spaces(p, b);
    }
    if (skip_spaces(p + 1, b) != b->end) return NULL;
    if (most - to < b->end - copied + SLACK) {
        *full = 1;
        return NULL;
    }
    return copy(to, copied, b->end - copied, b->last);
}

/* Members of JSON rows: left out, renamed, masked. */

/* What becomes of a member: DROP leaves it out; HASH writes the SHA-256 of a text and of the value; CUT the first characters,
   `number` of them; CONSTANT the text in place of the value; NAMES is a list of names, and leaves the row to Python if a rule
   is for one of them; ODD leaves the row to Python. With a `to` (a name in quotes and a colon) the member is renamed. */
enum { DROP = 20, HASH = 21, CUT = 22, CONSTANT = 23, NAMES = 24 };

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

/* The first 32 bits of the fractions of the cube roots of the first 64 primes (FIPS 180-4). */
static const uint32_t sha_rounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static inline uint32_t turned(uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

#define ROUND(a, b, c, d, e, f, g, h, number)                                                                                \
    h += (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + sha_rounds[number] + w[number];             \
    d += h;                                                                                                                  \
    h += (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))

static void sha_block(uint32_t *state, const uint8_t *block) {
    uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t early = turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t late = turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + early + w[i - 7] + late;
    }
    for (int i = 0; i < 64; i += 8) {
        ROUND(a, b, c, d, e, f, g, h, i);
        ROUND(h, a, b, c, d, e, f, g, i + 1);
        ROUND(g, h, a, b, c, d, e, f, i + 2);
        ROUND(f, g, h, a, b, c, d, e, i + 3);
        ROUND(e, f, g, h, a, b, c, d, i + 4);
        ROUND(d, e, f, g, h, a, b, c, i + 5);
        ROUND(c, d, e, f, g, h, a, b, i + 6);
        ROUND(b, c, d, e, f, g, h, a, i + 7);
    }
    const uint32_t more[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++) state[i] += more[i];
}

/* The same with the processor's own instructions, five times as fast. A register has the words A, B, E and F, another one C, D,
   G and H, the first of them highest; an instruction does two rounds. */
#if defined(__x86_64__) && !defined(PLAIN_SHA)
__attribute__((target("sha,sse4.1"))) static void sha_block_at_once(uint32_t *state, const uint8_t *block) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    const __m128i first = _mm_set_epi32((int)state[0], (int)state[1], (int)state[4], (int)state[5]);
    const __m128i second = _mm_set_epi32((int)state[2], (int)state[3], (int)state[6], (int)state[7]);
    __m128i abef = first, cdgh = second, w[4];
    uint32_t sums[8];
    for (int i = 0; i < 16; i++) {
        if (i < 4) {
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(block + 16 * i)), swap);
        } else {
            __m128i before = w[(i + 3) & 3], between = _mm_alignr_epi8(before, w[(i + 2) & 3], 4);
            __m128i early = _mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]);
            w[i & 3] = _mm_sha256msg2_epu32(_mm_add_epi32(early, between), before);
        }
        __m128i words = _mm_add_epi32(w[i & 3], _mm_loadu_si128((const __m128i *)(sha_rounds + 4 * i)));
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, words);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(words, 0x0E));
    }
    _mm_storeu_si128((__m128i *)sums, _mm_add_epi32(abef, first));
    _mm_storeu_si128((__m128i *)(sums + 4), _mm_add_epi32(cdgh, second));
    state[0] = sums[3], state[1] = sums[2], state[4] = sums[1], state[5] = sums[0];
    state[2] = sums[7], state[3] = sums[6], state[6] = sums[5], state[7] = sums[4];
}

static int has_sha(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && c >> 19 & 1 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1;
}
#else
#define sha_block_at_once sha_block
static int has_sha(void) { return 0; }
#endif

static int at_once = -1; /* not asked yet */

/* Write the SHA-256 of bytes in hex. Behind the bytes there is room for 128 more. */
static uint8_t *put_sha256(uint8_t *to, uint8_t *bytes, int64_t size) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    int64_t padded = (size + 8) / 64 * 64 + 64;
    memset(bytes + size, 0, (size_t)(padded - size));
    bytes[size] = 0x80;
    for (int i = 0; i < 8; i++) bytes[padded - 1 - i] = (uint8_t)((uint64_t)size * 8 >> (8 * i));
    for (int64_t block = 0; block < padded; block += 64)
        if (at_once)
            sha_block_at_once(state, bytes + block);
        else
            sha_block(state, bytes + block);
    for (int i = 0; i < 64; i++) *to++ = (uint8_t)"0123456789abcdef"[state[i / 8] >> (28 - i % 8 * 4) & 15];
    return to;
}

/* Write the text of a rule and a value's SHA-256; the value lies from `p` to `end`. NULL for a lone surrogate. */
static uint8_t *put_hash(uint8_t *to, Place p, Place end, const Bounds *b, const Rule *rule) {
    uint8_t *bytes = to + 128, *behind; /* over which the result is not written */
    memcpy(bytes, rule->text, (size_t)rule->text_size);
    behind = bytes + rule->text_size;
    behind = *p == '"' ? unescape(behind, p + 1, end - 1, b->last) : copy(behind, p, end - p, b->last);
    if (!behind) return NULL;
    *to++ = '"';
    to = put_sha256(to, bytes, behind - bytes);
    *to++ = '"';
    return to;
}

/* Write the first characters of a text, or of a value that is none; NULL for an object, an array and a lone surrogate. */
static uint8_t *put_cut(uint8_t *to, Place p, Place end, const Bounds *b, int64_t most) {
    Place start = p;
    if (*p == '{' || *p == '[') return NULL;
    if (*p == '"') {
        start = ++p;
        end--;
    }
    for (; p < end && most > 0; most--) {
        if (*p == '\\' && p[1] == 'u') {
            int32_t code = hex4(p + 2, end);
            p += 6;
            if (code < 0xD800 || code >= 0xE000) continue;
            if (code >= 0xDC00 || end - p < 6 || p[0] != '\\' || p[1] != 'u') return NULL;
            code = hex4(p + 2, end);
            if (code < 0xDC00 || code >= 0xE000) return NULL;
            p += 6;
        } else if (*p == '\\') {
            p += 2;
        } else {
            for (p++; p < end && (*p & 0xC0) == 0x80; p++) {}
        }
    }
    *to++ = '"';
    to = copy(to, start, p - start, b->last);
    *to++ = '"';
    return to;
}

/* The rule for a name, looked for from number `expected` on; NULL without one. */
static inline const Rule *rule_of(const Plan *plan, int64_t *expected, Place name, int64_t size) {
    const Rule *rules = plan->members;
    for (int64_t i = 0; i < plan->count; i++) {
        int64_t number = *expected + i < plan->count ? *expected + i : *expected + i - plan->count;
        if (rules[number].name_size == size && !memcmp(rules[number].name, name, (size_t)size)) {
            *expected = number + 1 < plan->count ? number + 1 : 0;
            return &rules[number];
        }
    }
    return NULL;
}

/* Whether no rule drops or renames one of the names in a list of them. */
static int are_plain_names(Place p, const Bounds *b, const Plan *plan) {
    int64_t expected = 0;
    if (at(p, b) != '[') return 0;
    p = skip_spaces(p + 1, b);
    while (at(p, b) == '"') {
        int escaped = 0;
        Place end = end_of_string(p + 1, b, &escaped);
        if (!end || escaped) return 0;
        const Rule *rule = rule_of(plan, &expected, p + 1, end - p - 1);
        if (rule && (rule->to_size || rule->kind == DROP || rule->kind == ODD)) return 0;
        p = skip_spaces(end + 1, b);
        if (at(p, b) == ',') p = skip_spaces(p + 1, b);
    }
    return at(p, b) == ']';
}

/* Write a value as its rule says; NULL outside of the subset. */
static uint8_t *put_ruled(uint8_t *to, Place p, Place end, const Bounds *b, const Rule *rule) {
    if (*p == 'n' || rule->kind == KEEP || rule->kind == NAMES) return copy(to, p, end - p, b->last);
    if (rule->kind == HASH) return put_hash(to, p, end, b, rule);
    if (rule->kind == CUT) return put_cut(to, p, end, b, rule->number);
    memcpy(to, rule->text, (size_t)rule->text_size);
    return to + rule->text_size;
}

/* A PutRow for plans of Rules: members without one are copied together. */
static uint8_t *put_by_rules(uint8_t *to, const uint8_t *most, Place p, const Bounds *b, const Plan *plan, int *full) {
    Place run, run_end = NULL; /* members that are copied together with the next one */
    int64_t expected = 0;
    int empty = 1;
    p = skip_spaces(p, b);
    if (at(p, b) != '{') return NULL;
    *full = most - to < b->end - p + ROOM_A_VALUE;
    if (*full) return NULL;
    *to++ = '{';
    run = p = skip_spaces(p + 1, b);
    for (int first = 1; at(p, b) != '}'; first = 0) {
        int escaped = 0;
        Place start, name, name_end, value;
        if (!first) {
            if (at(p, b) != ',') return NULL;
            p = skip_spaces(p + 1, b);
        }
        start = p;
        value = p = skip_name(p, b, &name, &name_end, &escaped);
        if (!p || escaped) return NULL;
        const Rule *rule = rule_of(plan, &expected, name, name_end - name);
        if (rule && (rule->kind == ODD || (rule->kind == NAMES && !are_plain_names(p, b, plan)))) return NULL;
        p = skip_value(p, b);
        if (!p) return NULL;
        if (!rule && plan->only_named) {
            /* left out */
        } else if (!rule) {
            if (!run_end) run = start;
            run_end = p;
        } else {
            int64_t size = (run_end ? run_end - run : 0) + rule->to_size + rule->text_size + 2 * (p - start);
            *full = most - to < size + ROOM_A_VALUE;
            if (*full) return NULL;
            if (run_end) {
                if (!empty) *to++ = ',';
                to = copy(to, run, run_end - run, b->last);
                run_end = NULL;
                empty = 0;
            }
            if (rule->kind != DROP) {
                if (!empty) *to++ = ',';
                if (rule->to_size) {
                    memcpy(to, rule->to, (size_t)rule->to_size);
                    to += rule->to_size;
                } else {
                    to = copy(to, start, value - start, b->last);
                }
                to = put_ruled(to, value, p, b, rule);
                if (!to) return NULL;
                empty = 0;
            }
        }
        p = skip_spaces(p, b);
    }
    if (skip_spaces(p + 1, b) != b->end) return NULL;
    *full = most - to < (run_end ? run_end - run : 0) + SLACK;
    if (*full) return NULL;
    if (run_end) {
        if (!empty) *to++ = ',';
        to = copy(to, run, run_end - run, b->last);
    }
    *to++ = '}';
    return to;
}

/* Rewrite rows by plans of Conversions (`rewrite`). */
int64_t txn_sink_convert(const void *bounds, int32_t wide, const uint8_t *data, const Plan *plans, const int32_t *chosen,
                         int64_t rows, uint8_t *to, int64_t room, int64_t *used, int32_t *ends, int64_t row) {
    return rewrite(put_converted, bounds, wide, data, plans, chosen, rows, to, room, used, ends, row);
}

/* Rewrite rows by plans of Rules (`rewrite`). */
int64_t txn_sink_apply_rules(const void *bounds, int32_t wide, const uint8_t *data, const Plan *plans, const int32_t *chosen,
                             int64_t rows, uint8_t *to, int64_t room, int64_t *used, int32_t *ends, int64_t row) {
    if (at_once < 0) at_once = has_sha();
    return rewrite(put_by_rules, bounds, wide, data, plans, chosen, rows, to, room, used, ends, row);
}

/* Messages of Avro, behind a schema's number of a registry, as JSON (sources/formats/avro.py). */

enum { A_NULL, A_BOOLEAN, A_LONG, A_FLOAT, A_DOUBLE, A_BYTES, A_STRING, A_FIXED, A_ENUM, A_ARRAY, A_MAP, A_UNION, A_RECORD };

/* A type. The types of its fields, branches, items or symbols are `count` ones from number `first` on. `text` is what comes
   in front of a field (its name and a colon), or a symbol. A fixed has `count` bytes. */
typedef struct {
    int64_t kind, first, count;
    const uint8_t *text;
    int64_t text_size;
} AvroType;

/* The types of a schema, of which number 0 is the whole, and the text in front of the JSON: an object that ends behind it. A
   message has `header` bytes in front of its value. */
typedef struct {
    const AvroType *types;
    const uint8_t *before;
    int64_t before_size, header;
} AvroSchema;

typedef struct {
    Place p, end;
    uint8_t *to;
    const uint8_t *most;
    const AvroType *types;
    int full;
} Avro;

static inline int has_room(Avro *a, int64_t size) {
    if (a->most - a->to >= size) return 1;
    a->full = 1;
    return 0;
}

static inline int put_raw(Avro *a, const void *text, int64_t size) {
    if (!has_room(a, size)) return 0;
    memcpy(a->to, text, (size_t)size);
    a->to += size;
    return 1;
}

static inline int avro_number(Avro *a, int64_t *number) {
    uint64_t bits = 0;
    for (int shift = 0; a->p < a->end; shift += 7) {
        uint8_t byte = *a->p++;
        if (shift == 63 && byte > 1) return 0;
        bits |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *number = (int64_t)(bits >> 1 ^ (0 - (bits & 1)));
            return 1;
        }
        if (shift == 63) return 0;
    }
    return 0;
}

static int put_whole(Avro *a, int64_t number) {
    uint8_t digits[20], *first = digits + sizeof digits;
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do *--first = (uint8_t)('0' + rest % 10);
    while (rest /= 10);
    if (number < 0) *--first = '-';
    return put_raw(a, first, digits + sizeof digits - first);
}

/* The shortest of the spellings that C's printf has, from `least` digits on, which reads as the same number. */
static int put_real(Avro *a, double number, int least, int most, int narrow) {
    char text[40];
    int size = 0;
    if (isnan(number)) return put_raw(a, "\"NaN\"", 5);
    if (isinf(number)) return number < 0 ? put_raw(a, "\"-Infinity\"", 11) : put_raw(a, "\"Infinity\"", 10);
    for (int digits = least; digits <= most; digits++) {
        size = snprintf(text, sizeof text, "%.*g", digits, number);
        if (narrow ? strtof(text, NULL) == (float)number : strtod(text, NULL) == number) break;
    }
    if (!put_raw(a, text, size)) return 0;
    return strpbrk(text, ".e") ? 1 : put_raw(a, ".0", 2);
}

static int put_base64(Avro *a, Place p, int64_t size) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (!has_room(a, (size + 2) / 3 * 4 + 2)) return 0;
    uint8_t *to = a->to;
    *to++ = '"';
    for (int64_t i = 0; i < size; i += 3) {
        uint32_t three = (uint32_t)p[i] << 16 | (i + 1 < size ? (uint32_t)p[i + 1] << 8 : 0) | (i + 2 < size ? p[i + 2] : 0);
        *to++ = (uint8_t)digits[three >> 18];
        *to++ = (uint8_t)digits[three >> 12 & 63];
        *to++ = i + 1 < size ? (uint8_t)digits[three >> 6 & 63] : '=';
        *to++ = i + 2 < size ? (uint8_t)digits[three & 63] : '=';
    }
    *to++ = '"';
    a->to = to;
    return 1;
}

/* The place of the first byte that JSON escapes, or `end`; NULL if the text is no UTF-8. */
static Place plain_until(Place p, Place end) {
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    while (p < end) {
        uint64_t word;
        if (end - p >= 8) {
            memcpy(&word, p, 8);
            uint64_t quote = word ^ ones * '"', backslash = word ^ ones * '\\';
            if (!((word | (word - ones * 0x20) | (quote - ones) | (backslash - ones)) & high)) {
                p += 8;
                continue;
            }
        }
        if (*p < 0x20 || *p == '"' || *p == '\\') return p;
        if (*p < 0x80)
            p++;
        else if (!(p = skip_utf8(p, end)))
            return NULL;
    }
    return p;
}

static int put_escaped(Avro *a, uint8_t c) {
    static const char digits[] = "0123456789abcdef", names[] = "btn\0fr"; /* of the bytes from 8 on */
    uint8_t text[6] = {'\\', 'u', '0', '0', (uint8_t)digits[c >> 4], (uint8_t)digits[c & 15]};
    if (c == '"' || c == '\\')
        text[1] = c;
    else if (c >= '\b' && c <= '\r' && names[c - '\b'])
        text[1] = (uint8_t)names[c - '\b'];
    else
        return put_raw(a, text, 6);
    return put_raw(a, text, 2);
}

static int put_json_string(Avro *a, Place p, int64_t size) {
    Place end = p + size;
    if (!put_raw(a, "\"", 1)) return 0;
    while (p < end) {
        Place next = plain_until(p, end);
        if (!next || !put_raw(a, p, next - p)) return 0;
        if (next < end && !put_escaped(a, *next++)) return 0;
        p = next;
    }
    return put_raw(a, "\"", 1);
}

/* The number of bytes that follow, which are there. */
static inline int avro_size(Avro *a, int64_t *size) { return avro_number(a, size) && *size >= 0 && *size <= a->end - a->p; }

static int put_avro(Avro *a, const AvroType *type, int depth);

/* The items of an array or a map, which come in blocks. */
static int put_items(Avro *a, const AvroType *type, int depth) {
    int map = type->kind == A_MAP;
    int64_t count, size, written = 0;
    if (!put_raw(a, map ? "{" : "[", 1)) return 0;
    for (;;) {
        if (!avro_number(a, &count)) return 0;
        if (!count) return put_raw(a, map ? "}" : "]", 1);
        if (count < 0 && (count == INT64_MIN || !avro_number(a, &size))) return 0;
        if (count < 0) count = -count;
        if (count > a->end - a->p) return 0; /* an item has a byte at least, unless it says nothing */
        for (; count; count--) {
            if (written++ && !put_raw(a, ",", 1)) return 0;
            if (map) {
                if (!avro_size(a, &size) || !put_json_string(a, a->p, size) || !put_raw(a, ":", 1)) return 0;
                a->p += size;
            }
            if (!put_avro(a, &a->types[type->first], depth)) return 0;
        }
    }
}

/* Write one value; 0 outside of the subset, or without room. */
static int put_avro(Avro *a, const AvroType *type, int depth) {
    int64_t number;
    if (depth > DEEPEST) return 0;
    switch (type->kind) {
    case A_NULL: return put_raw(a, "null", 4);
    case A_BOOLEAN:
        if (a->p >= a->end || *a->p > 1) return 0;
        return *a->p++ ? put_raw(a, "true", 4) : put_raw(a, "false", 5);
    case A_LONG: return avro_number(a, &number) && put_whole(a, number);
    case A_FLOAT: {
        float real;
        if (a->end - a->p < 4) return 0;
        memcpy(&real, a->p, 4);
        a->p += 4;
        return put_real(a, real, 6, 9, 1);
    }
    case A_DOUBLE: {
        double real;
        if (a->end - a->p < 8) return 0;
        memcpy(&real, a->p, 8);
        a->p += 8;
        return put_real(a, real, 15, 17, 0);
    }
    case A_BYTES: case A_FIXED: case A_STRING: {
        int64_t size = type->count;
        if (type->kind == A_FIXED ? size > a->end - a->p : !avro_size(a, &size)) return 0;
        Place start = a->p;
        a->p += size;
        return type->kind == A_STRING ? put_json_string(a, start, size) : put_base64(a, start, size);
    }
    case A_ENUM:
        if (!avro_number(a, &number) || number < 0 || number >= type->count) return 0;
        return put_raw(a, a->types[type->first + number].text, a->types[type->first + number].text_size);
    case A_UNION:
        if (!avro_number(a, &number) || number < 0 || number >= type->count) return 0;
        return put_avro(a, &a->types[type->first + number], depth + 1);
    case A_ARRAY: case A_MAP: return put_items(a, type, depth + 1);
    default: { /* a record */
        if (!put_raw(a, "{", 1)) return 0;
        for (int64_t i = 0; i < type->count; i++) {
            const AvroType *field = &a->types[type->first + i];
            if ((i && !put_raw(a, ",", 1)) || !put_raw(a, field->text, field->text_size)) return 0;
            if (!put_avro(a, field, depth + 1)) return 0;
        }
        return put_raw(a, "}", 1);
    }
    }
}

/* Write the messages from `row` on as JSON, each by its schema (`chosen`); an empty text with -1. The terms are those of
   txn_sink_convert. */
int64_t txn_sink_avro(const void *bounds, int32_t wide, const uint8_t *data, const AvroSchema *schemas, const int32_t *chosen,
                      int64_t rows, uint8_t *to, int64_t room, int64_t *used, int32_t *ends, int64_t row) {
    const int32_t *narrow_bounds = bounds;
    const int64_t *wide_bounds = bounds;
    for (; row < rows; row++) {
        int64_t start = wide ? wide_bounds[row] : narrow_bounds[row], end = wide ? wide_bounds[row + 1] : narrow_bounds[row + 1];
        if (chosen[row] >= 0) {
            const AvroSchema *schema = &schemas[chosen[row]];
            Avro a = {data + start + schema->header, data + end, to + *used, to + room, schema->types, 0};
            int there = end - start >= schema->header && put_raw(&a, schema->before, schema->before_size) && put_avro(&a, schema->types, 0)
                        && a.p == a.end && (!schema->before_size || put_raw(&a, "}", 1));
            if (a.full) return -1 - row;
            if (!there) return row;
            *used = a.to - to;
        }
        ends[row + 1] = (int32_t)*used;
    }
    return rows;
}

/* Messages of Protobuf, behind a schema's number of a registry, as JSON (sources/formats/protobuf.py). */

enum { P_BOOL, P_INT32, P_INT64, P_UINT32, P_UINT64, P_SINT32, P_SINT64, P_ENUM, P_FIXED32, P_SFIXED32, P_FLOAT, P_FIXED64,
       P_SFIXED64, P_DOUBLE, P_STRING, P_BYTES, P_MESSAGE, P_WRAPPER, P_DECIMAL, P_DATE, P_TIME, P_TIMESTAMP };
/* Without presence a field that is not there has its type's zero; an OPTIONAL one is null, a REQUIRED one is an error. */
enum { P_IMPLICIT, P_OPTIONAL, P_REQUIRED, P_REPEATED, P_MAP };
/* A decimal is base64 with the scale `first`, or an object with its own scale; or it is, as dates and times are, a text for
   StarRocks. Other dates and times are in ISO 8601. */
enum { P_CONNECT, P_OWN_SCALE, P_PLAIN };
enum { VARINT = 0, EIGHT = 1, SIZED = 2, FOUR = 5, ABSENT = -1 };
#define MOST_KEYS 64 /* of a map, whose keys are compared with one another */

/* A field, or a value of an enum. The fields of its message, or the values of its enum, are `count` ones from `first` on; the
   count of a decimal, a date or a time is its form. `text` is the name and a colon, or a symbol. Of the fields with the same
   `oneof`, unless it is 0, a message has one at most. */
typedef struct {
    int64_t number, kind, label, first, count, oneof;
    const uint8_t *text;
    int64_t text_size;
} ProtoField;

/* The fields of a schema, of which number 0 is the whole message; the rest as in AvroSchema. */
typedef struct {
    const ProtoField *fields;
    const uint8_t *before;
    int64_t before_size, header;
} ProtoSchema;

/* Where a field's value is: the content of a SIZED one begins at `start`, and has `value` bytes. */
typedef struct {
    Place start;
    uint64_t value;
    int64_t wire;
} ProtoSlot;

typedef struct {
    Avro out;
    const ProtoField *fields;
    ProtoSlot *slots, *end;
} Proto;

static inline int take_varint(Place *p, Place end, uint64_t *number) {
    uint64_t bits = 0;
    for (int shift = 0; *p < end && shift < 70; shift += 7) {
        uint8_t byte = *(*p)++;
        if (shift == 63 && byte > 1) return 0;
        bits |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *number = bits;
            return 1;
        }
    }
    return 0;
}

static inline int take_scalar(Place *p, Place end, int64_t wire, ProtoSlot *slot) {
    int64_t size = wire == EIGHT ? 8 : 4;
    slot->wire = wire;
    slot->value = 0;
    if (wire == VARINT) return take_varint(p, end, &slot->value);
    if (end - *p < size) return 0;
    memcpy(&slot->value, *p, (size_t)size);
    *p += size;
    return 1;
}

/* Read a field's number and its value; 0 for bytes that are none, and for groups. */
static inline int take_proto_field(Place *p, Place end, int64_t *number, ProtoSlot *slot) {
    uint64_t tag;
    if (!take_varint(p, end, &tag) || tag > UINT32_MAX || tag < 8) return 0;
    *number = (int64_t)(tag >> 3);
    switch (tag & 7) {
    case VARINT: case EIGHT: case FOUR: return take_scalar(p, end, (int64_t)(tag & 7), slot);
    case SIZED:
        if (!take_varint(p, end, &slot->value) || slot->value > (uint64_t)(end - *p)) return 0;
        slot->start = *p;
        slot->wire = SIZED;
        *p += slot->value;
        return 1;
    default: return 0;
    }
}

static inline int64_t wire_of(const ProtoField *field) {
    if (field->kind <= P_ENUM) return VARINT;
    return field->kind >= P_STRING ? SIZED : field->kind >= P_FIXED64 ? EIGHT : FOUR;
}

/* Find the fields of one message. 0 outside of the subset: a field without a name here or of another type, a message in two
   parts, two fields of a oneof. A repeated field has the place of its first tag. */
static int read_proto(const ProtoField *fields, int64_t count, ProtoSlot *slots, Place p, Place end) {
    int64_t number, next = 0;
    for (int64_t i = 0; i < count; i++) slots[i].wire = ABSENT;
    while (p < end) {
        Place tag = p;
        ProtoSlot slot;
        if (!take_proto_field(&p, end, &number, &slot)) return 0;
        int64_t i = next;
        if (i >= count || fields[i].number != number)
            for (i = 0; i < count && fields[i].number != number; i++) {}
        if (i == count) return 0;
        const ProtoField *field = &fields[i];
        int repeated = field->label >= P_REPEATED;
        if (slot.wire != wire_of(field) && !(repeated && slot.wire == SIZED)) return 0;
        next = repeated ? i : i + 1;
        if (repeated) {
            if (slots[i].wire != ABSENT) continue;
            slot.start = tag;
        } else if (slots[i].wire != ABSENT && field->kind >= P_MESSAGE) {
            return 0;
        }
        if (field->oneof)
            for (int64_t other = 0; other < count; other++)
                if (other != i && fields[other].oneof == field->oneof && slots[other].wire != ABSENT) return 0;
        slots[i] = slot;
    }
    return 1;
}

static int put_proto_value(Proto *m, const ProtoField *field, const ProtoSlot *slot, int depth);
static int put_proto_member(Proto *m, const ProtoField *field, const ProtoSlot *slot, Place end, int depth);
static int put_proto_fields(Proto *m, const ProtoField *type, Place p, Place end, int depth);

static int put_unsigned(Avro *a, uint64_t number) {
    if (!has_room(a, 20)) return 0;
    a->to = put_number(a->to, number, 1);
    return 1;
}

static int put_symbol(Proto *m, const ProtoField *field, uint64_t number) {
    for (int64_t i = field->first; i < field->first + field->count; i++)
        if (m->fields[i].number == (int64_t)number) return put_raw(&m->out, m->fields[i].text, m->fields[i].text_size);
    return 0;
}

static int put_proto_scalar(Proto *m, const ProtoField *field, uint64_t bits) {
    Avro *a = &m->out;
    int64_t number = (int64_t)bits, zigzag = (int64_t)(bits >> 1 ^ (0 - (bits & 1)));
    uint32_t low = (uint32_t)bits;
    float narrow;
    double real;
    switch (field->kind) {
    case P_BOOL: return bits <= 1 && (bits ? put_raw(a, "true", 4) : put_raw(a, "false", 5));
    case P_INT32: return number >= INT32_MIN && number <= UINT32_MAX && put_whole(a, (int32_t)low);
    case P_INT64: case P_SFIXED64: return put_whole(a, number);
    case P_UINT32: case P_FIXED32: return bits <= UINT32_MAX && put_unsigned(a, bits);
    case P_UINT64: case P_FIXED64: return put_unsigned(a, bits);
    case P_SINT32: return bits <= UINT32_MAX && put_whole(a, zigzag);
    case P_SINT64: return put_whole(a, zigzag);
    case P_ENUM: return put_symbol(m, field, bits);
    case P_SFIXED32: return put_whole(a, (int32_t)low);
    case P_FLOAT: memcpy(&narrow, &low, 4); return put_real(a, narrow, 6, 9, 1);
    default: memcpy(&real, &bits, 8); return put_real(a, real, 15, 17, 0);
    }
}

static const ProtoField DECIMAL_FIELDS[] = {{1, P_BYTES, 0, 0, 0, 0, NULL, 0}, {2, P_UINT32, 0, 0, 0, 0, NULL, 0}, {3, P_INT32, 0, 0, 0, 0, NULL, 0}};
static const ProtoField COUNTS[] = {{1, P_INT64, 0, 0, 0, 0, NULL, 0}, {2, P_INT64, 0, 0, 0, 0, NULL, 0}, {3, P_INT64, 0, 0, 0, 0, NULL, 0}, {4, P_INT64, 0, 0, 0, 0, NULL, 0}};

/* Write confluent.type.Decimal: a number in two's complement, its digits' count, and its scale. */
static int put_proto_decimal(Proto *m, const ProtoField *field, Place p, Place end) {
    Avro *a = &m->out;
    ProtoSlot slots[3];
    if (!read_proto(DECIMAL_FIELDS, 3, slots, p, end) || slots[0].wire == ABSENT || !slots[0].value) return 0;
    int64_t scale = slots[2].wire == ABSENT ? 0 : (int64_t)slots[2].value, size = (int64_t)slots[0].value;
    if (scale < -MOST_DIGITS || scale > MOST_DIGITS) return 0;
    if (field->count == P_CONNECT) return scale == field->first && put_base64(a, slots[0].start, size);
    if (field->count == P_OWN_SCALE)
        return put_raw(a, "{\"scale\":", 9) && put_whole(a, scale) && put_raw(a, ",\"value\":", 9)
               && put_base64(a, slots[0].start, size) && put_raw(a, "}", 1);
    if (size > MOST_BYTES || !has_room(a, 3 * MOST_DIGITS + 20)) return 0;
    uint8_t bytes[MOST_BYTES + 2];
    memcpy(bytes, slots[0].start, (size_t)size);
    *a->to++ = '"';
    a->to = put_signed_bytes(a->to, bytes, (int)size, scale);
    *a->to++ = '"';
    return 1;
}

/* The day of a date as Java's calendar has it: Julian until 1582-10-04; 0 for a date that is none. */
static int day_of_calendar(int64_t year, int64_t month, int64_t day, int julian, int64_t *days) {
    static const int lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (year < 1 || year > 999999999 || month < 1 || month > 12 || day < 1) return 0;
    int64_t order = year * 10000 + month * 100 + day;
    julian = julian && order < 15821015;
    if (julian && order > 15821004) return 0;
    int leap = month == 2 && year % 4 == 0 && (julian || year % 100 || year % 400 == 0);
    if (day > lengths[month - 1] + leap) return 0;
    int64_t shifted = year - (month <= 2), place = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    *days = julian ? shifted * 365 + shifted / 4 + place - 719470 : day_of(year, (int)month, (int)day);
    return 1;
}

/* Write google.type.Date, google.type.TimeOfDay or google.protobuf.Timestamp. */
static int put_proto_time(Proto *m, const ProtoField *field, Place p, Place end) {
    Avro *a = &m->out;
    ProtoSlot slots[4];
    int64_t n[4], days, used = field->kind == P_DATE ? 3 : field->kind == P_TIME ? 4 : 2;
    if (!read_proto(COUNTS, used, slots, p, end) || !has_room(a, 64)) return 0;
    for (int64_t i = 0; i < used; i++) n[i] = slots[i].wire == ABSENT ? 0 : (int64_t)slots[i].value;
    int plain = field->count == P_PLAIN;
    uint8_t *to = a->to;
    *to++ = '"';
    if (field->kind == P_DATE) {
        if (!day_of_calendar(n[0], n[1], n[2], !plain, &days)) return 0;
        to = put_date(to, days);
    } else if (field->kind == P_TIME) {
        if (n[0] < 0 || n[0] > 23 || n[1] < 0 || n[1] > 59 || n[2] < 0 || n[2] > 59 || n[3] < 0 || n[3] > 999999999) return 0;
        to = put_clock(to, (uint64_t)(n[0] * 3600 + n[1] * 60 + n[2]), n[3]);
    } else {
        if (n[0] < -9300000000000000 || n[0] > 9300000000000000 || n[1] < 0 || n[1] > 999999999) return 0;
        days = n[0] / 86400 - (n[0] % 86400 < 0);
        to = put_date(to, days);
        *to++ = plain ? ' ' : 'T';
        to = put_clock(to, (uint64_t)(n[0] - days * 86400), n[1]);
    }
    if (!plain) *to++ = 'Z';
    *to++ = '"';
    a->to = to;
    return 1;
}

/* Write the value in a google.protobuf.*Value. */
static int put_wrapped(Proto *m, const ProtoField *field, Place p, Place end, int depth) {
    const ProtoField *inner = &m->fields[field->first];
    ProtoSlot slot;
    if (!read_proto(inner, 1, &slot, p, end)) return 0;
    return put_proto_value(m, inner, &slot, depth);
}

/* Write one value; an absent one is that of a field without presence. */
static int put_proto_value(Proto *m, const ProtoField *field, const ProtoSlot *slot, int depth) {
    int absent = slot->wire == ABSENT;
    Place start = absent ? m->out.to : slot->start;
    int64_t size = absent ? 0 : (int64_t)slot->value;
    switch (field->kind) {
    case P_STRING: return put_json_string(&m->out, start, size);
    case P_BYTES: return put_base64(&m->out, start, size);
    case P_MESSAGE: return put_proto_fields(m, field, start, start + size, depth + 1);
    case P_WRAPPER: return put_wrapped(m, field, start, start + size, depth + 1);
    case P_DECIMAL: return put_proto_decimal(m, field, start, start + size);
    case P_DATE: case P_TIME: case P_TIMESTAMP: return put_proto_time(m, field, start, start + size);
    default: return put_proto_scalar(m, field, absent ? 0 : slot->value);
    }
}

/* Write the items of a repeated field from its first tag on; those of numbers may be packed. */
static int put_repeated(Proto *m, const ProtoField *field, Place p, Place end, int depth) {
    int64_t number, written = 0;
    ProtoSlot slot;
    while (p < end) {
        if (!take_proto_field(&p, end, &number, &slot)) return 0;
        if (number != field->number) continue;
        if (slot.wire == SIZED && field->kind < P_STRING) {
            Place item = slot.start, last = slot.start + slot.value;
            while (item < last) {
                if (!take_scalar(&item, last, wire_of(field), &slot)) return 0;
                if ((written++ && !put_raw(&m->out, ",", 1)) || !put_proto_value(m, field, &slot, depth)) return 0;
            }
        } else if ((written++ && !put_raw(&m->out, ",", 1)) || !put_proto_value(m, field, &slot, depth)) {
            return 0;
        }
    }
    return 1;
}

/* Write the entries of a map from its first tag on; 0 also for a key that comes twice. */
static int put_map(Proto *m, const ProtoField *field, Place p, Place end, int depth) {
    const ProtoField *entry = &m->fields[field->first];
    ProtoSlot slot, slots[2], keys[MOST_KEYS];
    int64_t number;
    int written = 0, text = entry->kind == P_STRING;
    while (p < end) {
        if (!take_proto_field(&p, end, &number, &slot)) return 0;
        if (number != field->number) continue;
        if (written == MOST_KEYS || !read_proto(entry, 2, slots, slot.start, slot.start + slot.value)) return 0;
        if (slots[0].wire == ABSENT) slots[0] = (ProtoSlot){slot.start, 0, wire_of(entry)};
        for (int i = 0; i < written; i++)
            if (keys[i].value == slots[0].value && (!text || !memcmp(keys[i].start, slots[0].start, keys[i].value))) return 0;
        keys[written] = slots[0];
        if ((written++ && !put_raw(&m->out, ",", 1)) || (!text && !put_raw(&m->out, "\"", 1))) return 0;
        if (!put_proto_value(m, entry, &slots[0], depth)) return 0;
        if (!put_raw(&m->out, text ? ":" : "\":", text ? 1 : 2) || !put_proto_member(m, entry + 1, &slots[1], end, depth)) return 0;
    }
    return 1;
}

static int put_proto_member(Proto *m, const ProtoField *field, const ProtoSlot *slot, Place end, int depth) {
    Avro *a = &m->out;
    int absent = slot->wire == ABSENT;
    switch (field->label) {
    case P_OPTIONAL: return absent ? put_raw(a, "null", 4) : put_proto_value(m, field, slot, depth);
    case P_REQUIRED: return !absent && put_proto_value(m, field, slot, depth);
    case P_REPEATED:
        return put_raw(a, "[", 1) && (absent || put_repeated(m, field, slot->start, end, depth)) && put_raw(a, "]", 1);
    case P_MAP: return put_raw(a, "{", 1) && (absent || put_map(m, field, slot->start, end, depth)) && put_raw(a, "}", 1);
    default: return put_proto_value(m, field, slot, depth);
    }
}

/* Write a message, all fields in the schema's order; 0 outside of the subset, or without room. */
static int put_proto_fields(Proto *m, const ProtoField *type, Place p, Place end, int depth) {
    ProtoSlot *slots = m->slots;
    if (depth > DEEPEST || m->end - slots < type->count) return 0;
    const ProtoField *fields = m->fields + type->first;
    m->slots += type->count;
    int good = read_proto(fields, type->count, slots, p, end) && put_raw(&m->out, "{", 1);
    for (int64_t i = 0; good && i < type->count; i++)
        good = (!i || put_raw(&m->out, ",", 1)) && put_raw(&m->out, fields[i].text, fields[i].text_size)
               && put_proto_member(m, &fields[i], &slots[i], end, depth);
    m->slots = slots;
    return good && put_raw(&m->out, "}", 1);
}

/* Write the messages from `row` on as JSON; the terms are those of txn_sink_avro. */
int64_t txn_sink_protobuf(const void *bounds, int32_t wide, const uint8_t *data, const ProtoSchema *schemas, const int32_t *chosen,
                          int64_t rows, uint8_t *to, int64_t room, int64_t *used, int32_t *ends, int64_t row) {
    const int32_t *narrow_bounds = bounds;
    const int64_t *wide_bounds = bounds;
    ProtoSlot *slots = malloc(MOST_SLOTS * sizeof(ProtoSlot));
    for (; slots && row < rows; row++) {
        int64_t start = wide ? wide_bounds[row] : narrow_bounds[row], end = wide ? wide_bounds[row + 1] : narrow_bounds[row + 1];
        if (chosen[row] >= 0) {
            const ProtoSchema *schema = &schemas[chosen[row]];
            Proto m = {{NULL, NULL, to + *used, to + room, NULL, 0}, schema->fields, slots, slots + MOST_SLOTS};
            int there = end - start >= schema->header && put_raw(&m.out, schema->before, schema->before_size)
                        && put_proto_fields(&m, schema->fields, data + start + schema->header, data + end, 0)
                        && (!schema->before_size || put_raw(&m.out, "}", 1));
            if (m.out.full) {
                row = -1 - row;
                break;
            }
            if (!there) break;
            *used = m.out.to - to;
        }
        ends[row + 1] = (int32_t)*used;
    }
    free(slots);
    return row;
}

/* Messages of Kafka. */

/* rd_kafka_message_t of rdkafka.h, a public type whose layout librdkafka keeps. */
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

typedef void (*Destroy)(Message *);
typedef int64_t (*Timestamp)(const Message *, int32_t *);
typedef int32_t (*Headers)(const Message *, const void **);
typedef int32_t (*Header)(const void *, size_t, const char **, const void **, size_t *);

#define NO_ENTRY (-156) /* RD_KAFKA_RESP_ERR__NOENT */

/* A binary column: `ends` has room for rows + 1, `data` for all values, `valid` is zero. */
typedef struct {
    int32_t *ends;
    uint8_t *data;
    uint8_t *valid;
    int64_t nulls;
} Binary;

static inline void append_bytes(Binary *column, int64_t row, const uint8_t *from, size_t size) {
    int32_t start = column->ends[row];
    if (from) {
        memcpy(column->data + start, from, size);
        column->valid[row >> 3] |= (uint8_t)(1u << (row & 7));
    } else {
        size = 0;
        column->nulls++;
    }
    column->ends[row + 1] = start + (int32_t)size;
}

/* Move the errors among the messages behind the rows, each in their order, with the help of `spare`, which has room for
   `count`; returns how many rows there are, and the bytes of their values and keys. */
int64_t txn_sink_messages(Message **messages, int64_t count, Message **spare, int64_t *values, int64_t *keys) {
    int64_t rows = 0, errors = 0;
    *values = *keys = 0;
    for (int64_t i = 0; i < count; i++) {
        Message *each = messages[i];
        if (each->error) {
            spare[errors++] = each;
            continue;
        }
        messages[rows++] = each;
        *values += each->value ? (int64_t)each->value_size : 0;
        *keys += each->key ? (int64_t)each->key_size : 0;
    }
    memcpy(messages + rows, spare, (size_t)errors * sizeof(Message *));
    return rows;
}

/* The rows as columns. `topics` has the address of each one's topic, `times` are in milliseconds since the Unix epoch;
   `keys` may be NULL. */
void txn_sink_take(Message **messages, int64_t rows, Timestamp timestamp, int64_t *topics, int64_t *partitions,
                   int64_t *offsets, int64_t *times, Binary *values, Binary *keys) {
    int32_t kind;
    values->ends[0] = 0;
    if (keys) keys->ends[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        const Message *each = messages[row];
        topics[row] = (int64_t)(intptr_t)each->topic;
        partitions[row] = each->partition;
        offsets[row] = each->offset;
        times[row] = timestamp(each, &kind);
        append_bytes(values, row, each->value, each->value_size);
        if (keys) append_bytes(keys, row, each->key, each->key_size);
    }
}

/* The headers of the rows, by librdkafka's functions. `sizes` has their number, and the bytes of their names and values.
   With `lists` (only its ends and bits are used) they are the columns, with room for as much: a row's own headers are
   those between its ends; a row without any is NULL. Returns the first row whose headers cannot be read, otherwise `rows`. */
int64_t txn_sink_headers(Message **messages, int64_t rows, Headers headers_of, Header header_at, int64_t *sizes,
                         Binary *lists, Binary *names, Binary *values) {
    sizes[0] = sizes[1] = sizes[2] = 0;
    if (lists) lists->ends[0] = names->ends[0] = values->ends[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        const void *headers, *value;
        const char *name;
        size_t size;
        int64_t first = sizes[0];
        int32_t error = headers_of(messages[row], &headers);
        if (error && error != NO_ENTRY) return row;
        for (size_t i = 0; !error && !header_at(headers, i, &name, &value, &size); i++) {
            if (lists) {
                append_bytes(names, sizes[0], (const uint8_t *)name, strlen(name));
                append_bytes(values, sizes[0], value, size);
            }
            sizes[0]++;
            sizes[1] += (int64_t)strlen(name);
            sizes[2] += value ? (int64_t)size : 0;
        }
        if (!lists) continue;
        lists->ends[row + 1] = (int32_t)sizes[0];
        if (sizes[0] > first)
            lists->valid[row >> 3] |= (uint8_t)(1u << (row & 7));
        else
            lists->nulls++;
    }
    return rows;
}

void txn_sink_destroy(Message **messages, int64_t count, Destroy destroy) {
    for (int64_t i = 0; i < count; i++) destroy(messages[i]);
}
