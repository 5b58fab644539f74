/* Messages of Protobuf, behind a schema's number of a registry, as JSON (sources/formats/protobuf.py). */

#include "put.h"
#include "writer.h"

#define MOST_SLOTS 65536 /* fields of a message of Protobuf and of those around it: 1.5 MB */
#define MOST_KEYS 64 /* of a map, whose keys are compared with one another */

enum { VARINT = 0, EIGHT = 1, SIZED = 2, FOUR = 5, ABSENT = -1 };

/* Where a field's value is: the content of a SIZED one begins at `start`, and has `value` bytes. */
typedef struct {
    Place start;
    uint64_t value;
    int64_t wire;
} ProtoSlot;

typedef struct {
    Writer out;
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
    if (field->kind <= PROTO_ENUM) return VARINT;
    return field->kind >= PROTO_STRING ? SIZED : field->kind >= PROTO_FIXED64 ? EIGHT : FOUR;
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
        int repeated = field->label >= LABEL_REPEATED;
        if (slot.wire != wire_of(field) && !(repeated && slot.wire == SIZED)) return 0;
        next = repeated ? i : i + 1;
        if (repeated) {
            if (slots[i].wire != ABSENT) continue;
            slot.start = tag;
        } else if (slots[i].wire != ABSENT && field->kind >= PROTO_MESSAGE) {
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

static int put_unsigned(Writer *a, uint64_t number) {
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
    Writer *a = &m->out;
    int64_t number = (int64_t)bits, zigzag = (int64_t)(bits >> 1 ^ (0 - (bits & 1)));
    uint32_t low = (uint32_t)bits;
    float narrow;
    double real;
    switch (field->kind) {
    case PROTO_BOOL: return bits <= 1 && (bits ? put_raw(a, "true", 4) : put_raw(a, "false", 5));
    case PROTO_INT32: return number >= INT32_MIN && number <= UINT32_MAX && put_whole(a, (int32_t)low);
    case PROTO_INT64: case PROTO_SFIXED64: return put_whole(a, number);
    case PROTO_UINT32: case PROTO_FIXED32: return bits <= UINT32_MAX && put_unsigned(a, bits);
    case PROTO_UINT64: case PROTO_FIXED64: return put_unsigned(a, bits);
    case PROTO_SINT32: return bits <= UINT32_MAX && put_whole(a, zigzag);
    case PROTO_SINT64: return put_whole(a, zigzag);
    case PROTO_ENUM: return put_symbol(m, field, bits);
    case PROTO_SFIXED32: return put_whole(a, (int32_t)low);
    case PROTO_FLOAT: memcpy(&narrow, &low, 4); return put_real(a, narrow, 6, 9, 1);
    default: memcpy(&real, &bits, 8); return put_real(a, real, 15, 17, 0);
    }
}

static const ProtoField DECIMAL_FIELDS[] = {{1, PROTO_BYTES, 0, 0, 0, 0, NULL, 0}, {2, PROTO_UINT32, 0, 0, 0, 0, NULL, 0}, {3, PROTO_INT32, 0, 0, 0, 0, NULL, 0}};
static const ProtoField COUNTS[] = {{1, PROTO_INT64, 0, 0, 0, 0, NULL, 0}, {2, PROTO_INT64, 0, 0, 0, 0, NULL, 0}, {3, PROTO_INT64, 0, 0, 0, 0, NULL, 0}, {4, PROTO_INT64, 0, 0, 0, 0, NULL, 0}};

/* Write confluent.type.Decimal: a number in two's complement, its digits' count, and its scale. */
static int put_proto_decimal(Proto *m, const ProtoField *field, Place p, Place end) {
    Writer *a = &m->out;
    ProtoSlot slots[3];
    if (!read_proto(DECIMAL_FIELDS, 3, slots, p, end) || slots[0].wire == ABSENT || !slots[0].value) return 0;
    int64_t scale = slots[2].wire == ABSENT ? 0 : (int64_t)slots[2].value, size = (int64_t)slots[0].value;
    if (scale < -MOST_DIGITS || scale > MOST_DIGITS) return 0;
    if (field->count == FORM_CONNECT) return scale == field->first && put_base64(a, slots[0].start, size);
    if (field->count == FORM_OWN_SCALE)
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
    Writer *a = &m->out;
    ProtoSlot slots[4];
    int64_t n[4], days, used = field->kind == PROTO_DATE ? 3 : field->kind == PROTO_TIME ? 4 : 2;
    if (!read_proto(COUNTS, used, slots, p, end) || !has_room(a, 64)) return 0;
    for (int64_t i = 0; i < used; i++) n[i] = slots[i].wire == ABSENT ? 0 : (int64_t)slots[i].value;
    int plain = field->count == FORM_PLAIN;
    uint8_t *to = a->to;
    *to++ = '"';
    if (field->kind == PROTO_DATE) {
        if (!day_of_calendar(n[0], n[1], n[2], !plain, &days)) return 0;
        to = put_date(to, days);
    } else if (field->kind == PROTO_TIME) {
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
    case PROTO_STRING: return put_json_string(&m->out, start, size);
    case PROTO_BYTES: return put_base64(&m->out, start, size);
    case PROTO_MESSAGE: return put_proto_fields(m, field, start, start + size, depth + 1);
    case PROTO_WRAPPER: return put_wrapped(m, field, start, start + size, depth + 1);
    case PROTO_DECIMAL: return put_proto_decimal(m, field, start, start + size);
    case PROTO_DATE: case PROTO_TIME: case PROTO_TIMESTAMP: return put_proto_time(m, field, start, start + size);
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
        if (slot.wire == SIZED && field->kind < PROTO_STRING) {
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
    int written = 0, text = entry->kind == PROTO_STRING;
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
    Writer *a = &m->out;
    int absent = slot->wire == ABSENT;
    switch (field->label) {
    case LABEL_OPTIONAL: return absent ? put_raw(a, "null", 4) : put_proto_value(m, field, slot, depth);
    case LABEL_REQUIRED: return !absent && put_proto_value(m, field, slot, depth);
    case LABEL_REPEATED:
        return put_raw(a, "[", 1) && (absent || put_repeated(m, field, slot->start, end, depth)) && put_raw(a, "]", 1);
    case LABEL_MAP: return put_raw(a, "{", 1) && (absent || put_map(m, field, slot->start, end, depth)) && put_raw(a, "}", 1);
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
int64_t txn_sink_protobuf(const void *bounds, int32_t wide, const uint8_t *data, const MessageSchema *schemas, const int32_t *chosen,
                          int64_t rows, uint8_t *to, int64_t room, int64_t *used, int32_t *ends, int64_t row) {
    ProtoSlot *slots = malloc(MOST_SLOTS * sizeof(ProtoSlot));
    for (; slots && row < rows; row++) {
        int64_t start = bound(bounds, wide, row), end = bound(bounds, wide, row + 1);
        if (chosen[row] >= 0) {
            const MessageSchema *schema = &schemas[chosen[row]];
            Proto m = {{NULL, NULL, to + *used, to + room, NULL, 0}, schema->parts, slots, slots + MOST_SLOTS};
            int there = end - start >= schema->header && put_raw(&m.out, schema->before, schema->before_size);
            if (there) bound_json(&m.out, end - start);
            there = there && put_proto_fields(&m, schema->parts, data + start + schema->header, data + end, 0)
                    && (!schema->before_size || put_raw(&m.out, "}", 1));
            if (m.out.full && m.out.most == to + room) {
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
