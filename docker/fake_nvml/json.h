/* A reader for the JSON of machine files: objects, arrays, strings, numbers, true, false, null. */
#ifndef FAKE_JSON_H
#define FAKE_JSON_H

#include <stddef.h>

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    enum json_kind kind;
    double number;      /* JSON_NUMBER; JSON_BOOL: 0 or 1 */
    char *text;         /* JSON_STRING */
    char *key;          /* name, where the parent is an object */
    struct json *child; /* first member of an array or object */
    struct json *next;  /* next member of the parent */
};

/* The whole text as one value, or NULL if it is not valid JSON or nested deeper than 32. */
struct json *json_parse(const char *text);
void json_free(struct json *value);

/* Readers that take any value, NULL too; the default stands where the kind does not fit. */
const struct json *json_get(const struct json *object, const char *key);
double json_number(const struct json *object, const char *key, double otherwise);
const char *json_text(const struct json *object, const char *key, const char *otherwise);
size_t json_length(const struct json *value);

#endif
