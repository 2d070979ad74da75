#include "json.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 32 };

static struct json *value(const char **at, int depth);

static void blanks(const char **at)
{
    while (**at == ' ' || **at == '\t' || **at == '\n' || **at == '\r')
        (*at)++;
}

static struct json *make(enum json_kind kind)
{
    struct json *made = calloc(1, sizeof *made);
    if (made)
        made->kind = kind;
    return made;
}

static size_t put_utf8(char *out, unsigned long code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    out[0] = (char)(0xE0 | code >> 12);
    out[1] = (char)(0x80 | (code >> 6 & 0x3F));
    out[2] = (char)(0x80 | (code & 0x3F));
    return 3;
}

/* Surrogate pairs are not joined: no text in a machine file needs them. */
static char *string(const char **at)
{
    const char *end = ++*at;
    while (*end && *end != '"')
        end += *end == '\\' && end[1] ? 2 : 1;
    if (*end != '"')
        return NULL;
    char *text = malloc((size_t)(end - *at) + 1), *out = text;
    for (const char *p = *at; text && p < end; p++) {
        if (*p != '\\') {
            *out++ = *p;
            continue;
        }
        static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
        const char *known = strchr(from, *++p);
        if (known && *known) {
            *out++ = to[known - from];
        } else if (*p == 'u' && strspn(p + 1, "0123456789abcdefABCDEF") >= 4) {
            char digits[5] = {p[1], p[2], p[3], p[4], 0};
            out += put_utf8(out, strtoul(digits, NULL, 16));
            p += 4;
        } else {
            free(text);
            return NULL;
        }
    }
    if (text)
        *out = 0;
    *at = end + 1;
    return text;
}

static struct json *members(const char **at, int depth, char close)
{
    struct json *made = make(close == '}' ? JSON_OBJECT : JSON_ARRAY);
    struct json **last = made ? &made->child : NULL;
    ++*at;
    blanks(at);
    if (made && **at == close) {
        ++*at;
        return made;
    }
    while (made) {
        char *key = NULL;
        blanks(at);
        if (close == '}') {
            if (**at != '"' || !(key = string(at)))
                break;
            blanks(at);
            if (*(*at)++ != ':') {
                free(key);
                break;
            }
        }
        *last = value(at, depth);
        if (!*last) {
            free(key);
            break;
        }
        (*last)->key = key;
        last = &(*last)->next;
        blanks(at);
        if (**at == close) {
            ++*at;
            return made;
        }
        if (*(*at)++ != ',')
            break;
    }
    json_free(made);
    return NULL;
}

static struct json *word(const char **at, const char *name, enum json_kind kind, double number)
{
    size_t length = strlen(name);
    if (strncmp(*at, name, length) != 0)
        return NULL;
    struct json *made = make(kind);
    if (made)
        made->number = number;
    *at += length;
    return made;
}

static struct json *value(const char **at, int depth)
{
    if (depth > MAX_DEPTH)
        return NULL;
    blanks(at);
    switch (**at) {
    case '{': return members(at, depth + 1, '}');
    case '[': return members(at, depth + 1, ']');
    case 't': return word(at, "true", JSON_BOOL, 1);
    case 'f': return word(at, "false", JSON_BOOL, 0);
    case 'n': return word(at, "null", JSON_NULL, 0);
    case '"': {
        struct json *made = make(JSON_STRING);
        if (made && !(made->text = string(at))) {
            json_free(made);
            return NULL;
        }
        return made;
    }
    default: {
        char *end;
        double number = strtod(*at, &end);
        if (end == *at || !strchr("-0123456789", **at))
            return NULL;
        struct json *made = make(JSON_NUMBER);
        if (made)
            made->number = number;
        *at = end;
        return made;
    }
    }
}

struct json *json_parse(const char *text)
{
    struct json *made = value(&text, 0);
    blanks(&text);
    if (made && *text) {
        json_free(made);
        return NULL;
    }
    return made;
}

void json_free(struct json *value)
{
    while (value) {
        struct json *next = value->next;
        json_free(value->child);
        free(value->key);
        free(value->text);
        free(value);
        value = next;
    }
}

const struct json *json_get(const struct json *object, const char *key)
{
    if (!object || object->kind != JSON_OBJECT)
        return NULL;
    for (const struct json *c = object->child; c; c = c->next)
        if (strcmp(c->key, key) == 0)
            return c;
    return NULL;
}

double json_number(const struct json *object, const char *key, double otherwise)
{
    const struct json *found = json_get(object, key);
    return found && (found->kind == JSON_NUMBER || found->kind == JSON_BOOL) ? found->number
                                                                              : otherwise;
}

const char *json_text(const struct json *object, const char *key, const char *otherwise)
{
    const struct json *found = json_get(object, key);
    return found && found->kind == JSON_STRING ? found->text : otherwise;
}

size_t json_length(const struct json *value)
{
    size_t n = 0;
    for (const struct json *c = value ? value->child : NULL; c; c = c->next)
        n++;
    return n;
}
