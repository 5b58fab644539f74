/* Members of JSON objects as Arrow columns. */

#include "put.h"

#define FIELDS 32
#define PREFIXES 8 /* a batch has the messages of few tables at a time */
#define MEMBERS 32
#define LONGEST_NAME 16 /* in quotes, with its colon */
#define SLOTS 256
#define MOST_TEXTS (SLOTS * 3 / 4)

int64_t txn_sink_sources(void) { return SOURCES; }
int32_t txn_sink_slack(void) { return SLACK; }

typedef struct {
    Place start, end;
    int there, escaped;
} Field;

/* The text in front of a member's value, as the object before had it: a name in quotes and a colon. Its column is -1 if it
   has none. A long one is not kept: its size is larger than any value's. */
typedef struct {
    Place text;
    int32_t size, column;
} Known;

/* The members of the objects that have the same columns, in their order: most objects have the names of the one before. */
typedef struct {
    Known known[MEMBERS];
    int count;
} Shape;

/* The texts of a coded column by their hashes: in a slot that is used, where the text is in the column's data, and its
   number. `hit` is the slot of the value before. */
typedef struct {
    int32_t at[SLOTS], code[SLOTS];
    uint8_t used[SLOTS];
    int count, hit;
} Coder;

/* What is known of the values before: `shapes` by the first column of an object, and the last of them of a value whose
   members may be in another object (Wrapper). */
typedef struct {
    Shape shapes[FIELDS + 1];
    Coder coders[FIELDS];
} Before;

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

static inline int find_column(const Column *columns, int64_t count, Place name, int64_t size) {
    for (int n = 0; n < count; n++)
        if (columns[n].name_size == size && !memcmp(columns[n].name, name, (size_t)size)) return n;
    return -1;
}

/* Empty the fields of `count` columns from `first` on, and of their members. */
static void forget(const Column *columns, int64_t first, int64_t count, Field *fields) {
    for (int64_t n = first; n < first + count; n++) {
        fields[n].there = 0;
        if (columns[n].kind == MEMBER_OBJECT) forget(columns, columns[n].first, columns[n].members, fields);
    }
}

/* Whether the bytes at `p` are those of a known text, and the value follows. */
static inline int is_known(Place p, const Bounds *b, const Known *known) {
    if (b->end - p <= known->size) return 0;
#if defined(__SSE2__)
    if (p <= b->last && known->text <= b->last) {
        __m128i same = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)p), _mm_loadu_si128((const __m128i *)known->text));
        return !(~_mm_movemask_epi8(same) & ((1 << known->size) - 1));
    }
#endif
    return !memcmp(p, known->text, (size_t)known->size);
}

static inline void remember_name(Shape *shape, int i, Place text, int64_t size, int column) {
    if (i >= MEMBERS || i > shape->count) return;
    shape->known[i] = (Known){text, size > LONGEST_NAME ? INT32_MAX : (int32_t)size, column};
    if (i == shape->count) shape->count++;
}

/* Read the name and the colon of member `i` of an object with a shape; `*n` is its column, -1 for none. The place of the
   value, NULL outside of the subset. */
static inline Place read_name(Place p, const Bounds *b, const Column *columns, int64_t count, Shape *shape, int i, int *n) {
    int escaped = 0;
    Place name, name_end, start = p;
    if (i < shape->count && is_known(p, b, &shape->known[i])) {
        *n = shape->known[i].column;
        return p + shape->known[i].size;
    }
    p = skip_name(p, b, &name, &name_end, &escaped);
    if (!p || escaped || p >= b->end) return NULL;
    *n = find_column(columns, count, name, name_end - name);
    remember_name(shape, i, start, p - start, *n);
    return p;
}

static Place read_members(Place p, const Bounds *b, const Column *columns, int64_t first, int64_t count, Field *fields,
                          Before *before);

static inline Place read_field(Place p, const Bounds *b, const Column *columns, int64_t n, Field *fields, Before *before) {
    const Column *column = &columns[n];
    Field *field = &fields[n];
    int escaped = 0;
    Place start = p;
    field->there = 1;
    field->escaped = 0;
    if (*p == '"' && (column->kind == MEMBER_TEXT || column->kind == MEMBER_STRING)) {
        p = end_of_string(p + 1, b, &escaped);
        if (!p) return NULL;
        field->start = start + 1;
        field->end = p;
        field->escaped = escaped;
        return p + 1;
    }
    if (column->kind == MEMBER_OBJECT) forget(columns, column->first, column->members, fields); /* of a member before with this name */
    if (*p == 'n') {
        field->there = 0;
        return skip_word(p, b, "null", 4);
    }
    switch (column->kind) {
    case MEMBER_TEXT: p = skip_value(p, b); break;
    case MEMBER_WHOLE: p = skip_number(p, b); break;
    case MEMBER_LIST: p = *p == '[' ? skip_value(p, b) : NULL; break;
    case MEMBER_OBJECT: p = *p == '{' ? read_members(p, b, columns, column->first, column->members, fields, before) : NULL; break;
    default: return NULL;
    }
    field->start = start;
    field->end = p;
    return p;
}

/* Read the members of the object at `p` into the fields of `count` columns from `first` on; the place behind the object, NULL
   outside of the subset. */
static Place read_members(Place p, const Bounds *b, const Column *columns, int64_t first, int64_t count, Field *fields,
                          Before *before) {
    p = skip_spaces(p + 1, b);
    if (at(p, b) == '}') return p + 1;
    for (int i = 0;; i++) {
        int n;
        p = read_name(p, b, columns + first, count, &before->shapes[first], i, &n);
        if (!p) return NULL;
        p = n >= 0 ? read_field(p, b, columns, first + n, fields, before) : skip_value(p, b);
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

/* Read member `i` of a value: of one under the wrapper's name, with an object, the members are the fields; then `*wrapped` is
   set, and members of the value itself count no more. The place behind the member, NULL outside of the subset. */
static Place read_outer(Place p, Place start, const Bounds *b, const Column *columns, int64_t roots, Field *fields,
                        Wrapper *wrapper, int *wrapped, int i, Before *before) {
    int escaped = 0;
    Place name, name_end, value;
    Shape *shape = &before->shapes[FIELDS];
    if (!*wrapped && i < shape->count && is_known(p, b, &shape->known[i])) {
        int n = shape->known[i].column;
        p += shape->known[i].size;
        return n < 0 ? skip_value(p, b) : read_field(p, b, columns, n, fields, before);
    }
    value = skip_name(p, b, &name, &name_end, &escaped);
    if (!value || escaped || value >= b->end) return NULL;
    int64_t size = name_end - name;
    if (size != wrapper->name_size || memcmp(name, wrapper->name, (size_t)size)) {
        if (*wrapped) return skip_value(value, b);
        int n = find_column(columns, roots, name, size);
        remember_name(shape, i, p, value - p, n);
        return n < 0 ? skip_value(value, b) : read_field(value, b, columns, n, fields, before);
    }
    p = value;
    if (*wrapped) return NULL;
    if (*p == 'n') return skip_word(p, b, "null", 4);
    if (*p != '{') return NULL;
    forget(columns, 0, roots, fields);
    value = read_members(p, b, columns, 0, roots, fields, before);
    if (value) remember_prefix(wrapper, start, p - start);
    *wrapped = 1;
    return value;
}

/* Read a value whose members, or those of an object under the wrapper's name, are the fields; 0 outside of the subset. */
static int read_wrapped(Place start, const Bounds *b, const Column *columns, int64_t roots, Field *fields, Wrapper *wrapper,
                        Before *before) {
    wrapper->origin = -1;
    int64_t prefix = known_prefix(start, b, wrapper);
    int wrapped = prefix > 0, first = !wrapped, i = 0;
    Place p;
    if (wrapped) {
        p = read_members(start + prefix, b, columns, 0, roots, fields, before);
        if (!p) return 0;
    } else {
        p = skip_spaces(start, b);
        if (at(p, b) != '{') return 0;
        p++;
    }
    for (;; first = 0, i++) {
        p = skip_spaces(p, b);
        if (at(p, b) == '}') return skip_spaces(p + 1, b) == b->end;
        if (!first) {
            if (at(p, b) != ',') return 0;
            p = skip_spaces(p + 1, b);
            if (wrapped) wrapper->origin = wrapper->value; /* what follows the object may be its schema */
        }
        p = read_outer(p, start, b, columns, roots, fields, wrapper, &wrapped, i, before);
        if (!p) return 0;
    }
}

/* Read the members of one object into `fields`; 0 if the value is outside of the subset. */
static int read_object(Place p, const Bounds *b, const Column *columns, int64_t roots, Field *fields, Wrapper *wrapper,
                       Before *before) {
    if (wrapper->name) return read_wrapped(p, b, columns, roots, fields, wrapper, before);
    p = skip_spaces(p, b);
    if (at(p, b) != '{') return 0;
    p = read_members(p, b, columns, 0, roots, fields, before);
    return p && skip_spaces(p, b) == b->end;
}

/* Whether two texts are the same, the first of which has a SLACK behind it. */
static inline int is_same(Place known, Place text, int64_t size, Place last) {
#if defined(__SSE2__)
    if (size <= 16 && text <= last) {
        __m128i same = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)known), _mm_loadu_si128((const __m128i *)text));
        return !(~_mm_movemask_epi8(same) & ((1 << size) - 1));
    }
#else
    (void)last;
#endif
    return !memcmp(known, text, (size_t)size);
}

static inline int slot_of(Place text, int64_t size) {
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (int64_t i = 0; i < size; i++) hash = (hash ^ text[i]) * 16777619u;
    return (int)((hash ^ hash >> 16) % SLOTS);
}

static inline int has_text(const Column *column, const Coder *coder, int n, Place text, int64_t size, Place last) {
    int32_t known;
    if (!coder->used[n]) return 0;
    memcpy(&known, column->data + coder->at[n], 4);
    return known == size && is_same(column->data + coder->at[n] + 4, text, size, last);
}

/* Write the code of the field's text, which joins the column's texts if it is new; 0 for a lone surrogate. */
static inline int append_code(Column *column, int64_t row, const Field *field, Place last, Coder *coder) {
    int64_t size = field->end - field->start;
    Place text = field->start;
    uint8_t *to = column->data + column->first;
    column->ends[row] = 0;
    if (!field->there) return 1;
    if (field->escaped) {
        text = to + 4;
        Place end = unescape(to + 4, field->start, field->end, last);
        if (!end) return 0;
        size = end - text;
        last = text; /* not in the value */
    }
    int n = coder->hit;
    if (!has_text(column, coder, n, text, size, last)) {
        for (n = slot_of(text, size); coder->used[n]; n = (n + 1) % SLOTS)
            if (has_text(column, coder, n, text, size, last)) break;
    }
    coder->hit = n;
    if (!coder->used[n]) {
        if (coder->count == MOST_TEXTS) { /* those that come again have further numbers */
            memset(coder->used, 0, sizeof(coder->used));
            coder->count = 0;
        }
        int32_t known = (int32_t)size;
        memcpy(to, &known, 4);
        if (!field->escaped) memcpy(to + 4, text, (size_t)size);
        coder->used[n] = 1;
        coder->count++;
        coder->at[n] = (int32_t)column->first;
        coder->code[n] = (int32_t)column->members++;
        column->first += size + 4;
    }
    column->ends[row] = coder->code[n];
    return 1;
}

/* Append the field to its column; 0 for a lone surrogate, or a number that is not whole. */
static inline int append(Column *column, int64_t row, const Field *field, Place last, Coder *coder) {
    if (column->coded) {
        if (!append_code(column, row, field, last, coder)) return 0;
    } else if (column->kind == MEMBER_WHOLE) {
        int64_t *to = (int64_t *)column->data + row;
        *to = 0;
        if (field->there && !whole_number(field->start, field->end, to)) return 0;
    } else if (column->kind != MEMBER_OBJECT) {
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
    Field fields[FIELDS];
    Before before;
    Wrapper wrapped = {.name = wrapper, .name_size = wrapper ? (int64_t)strlen(wrapper) : 0};
    if (count < 1 || count > FIELDS) return -1;
    Place last = data + bound(bounds, wide, values) - 16;
    int64_t value = *next;
    for (int64_t n = 0; !row && n < count; n++)
        if (columns[n].ends) columns[n].ends[0] = 0;
    for (int n = 0; n <= FIELDS; n++) before.shapes[n].count = 0;
    for (int64_t n = 0; n < count; n++) {
        if (!columns[n].coded) continue;
        memset(before.coders[n].used, 0, sizeof(before.coders[n].used));
        before.coders[n].count = before.coders[n].hit = 0;
    }
    for (; value < values; value++) {
        Bounds b = {data + bound(bounds, wide, value + 1), last};
        int64_t filled = 0;
        if (!wanted[value]) continue;
        wrapped.value = value;
        for (int64_t n = 0; n < count; n++) fields[n].there = 0;
        if (!read_object(data + bound(bounds, wide, value), &b, columns, roots, fields, &wrapped, &before)) break;
        while (filled < count && append(&columns[filled], row, &fields[filled], last, &before.coders[filled])) filled++;
        if (filled < count) {
            take_back(columns, row, fields, filled);
            break;
        }
        if (wrapper) origins[row] = wrapped.origin;
        row++;
    }
    *next = value;
    return row;
}
