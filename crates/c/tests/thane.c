/* Uses every function of thane.h: thane EMBEDDER RERANKER CHAT. Prints a line for each result, which the test compares. */

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "thane.h"

static void check(thane_status status, char *error) {
    if (status != THANE_OK) {
        fprintf(stderr, "status %d: %s\n", status, error ? error : "no message");
        _exit(1);
    }
}

/* The status is an error whose message has `part`. */
static void refused(thane_status status, char **error, const char *part) {
    if (status != THANE_ERROR || !*error || !strstr(*error, part)) {
        fprintf(stderr, "expected an error with `%s`, found status %d: %s\n", part, status, *error ? *error : "");
        _exit(1);
    }
    thane_free(*error);
    *error = NULL;
}

static void print(const char *name, const float *values, size_t n) {
    printf("%s", name);
    for (size_t i = 0; i < n; i++) printf(" %.9g", values[i]);
    printf("\n");
}

static void embed(const char *path, const thane_options *options) {
    thane_embedder *model = NULL;
    char *error = NULL;
    check(thane_embedder_open(path, options, &model, &error), error);
    size_t dim = thane_embedder_dimension(model);
    const char *texts[] = {"a cat", "", "na\xc3\xafve caf\xc3\xa9"};
    float out[3 * 2048];
    assert(dim > 0 && dim <= 2048);
    check(thane_embedder_embed(model, texts, 3, NULL, out, 3 * dim, &error), error);
    for (size_t i = 0; i < 3; i++) print("vector", out + i * dim, dim);
    check(thane_embedder_embed(model, NULL, 0, NULL, NULL, 0, &error), error);

    const char *bad[] = {"a", NULL}, *bytes[] = {"\xff\xfe"};
    refused(thane_embedder_embed(model, texts, 3, NULL, out, 2 * dim, &error), &error, "out_len: expected 3 x");
    refused(thane_embedder_embed(model, bad, 2, NULL, out, 2 * dim, &error), &error, "texts[1]: expected a text, found NULL");
    refused(thane_embedder_embed(model, bytes, 1, NULL, out, dim, &error), &error, "texts[0]: expected UTF-8");
    refused(thane_embedder_embed(model, texts, 1, "nobody", out, dim, &error), &error, "nobody");
    refused(thane_embedder_embed(NULL, texts, 1, NULL, out, dim, &error), &error, "model: expected one");
    /* Nobody wants the message. */
    assert(thane_embedder_embed(model, texts, 1, "nobody", out, dim, NULL) == THANE_ERROR);
    thane_embedder_close(model);
    thane_embedder_close(NULL);
}

static void rerank(const char *path, const thane_options *options) {
    thane_reranker *model = NULL;
    char *error = NULL;
    check(thane_reranker_open(path, options, &model, &error), error);
    const char *texts[] = {"a dog", "a kitten on the mat", "rain"};
    float scores[3];
    check(thane_reranker_score(model, "a cat", texts, 3, scores, &error), error);
    print("scores", scores, 3);
    refused(thane_reranker_score(model, NULL, texts, 3, scores, &error), &error, "query: expected a text");
    thane_reranker_close(model);
}

struct pieces {
    char text[4096];
    size_t len;
    int most;
    thane_generator *cancel;
};

static int on_text(const char *text, size_t len, void *user) {
    struct pieces *pieces = user;
    assert(strlen(text) == len && pieces->len + len < sizeof pieces->text);
    memcpy(pieces->text + pieces->len, text, len + 1);
    pieces->len += len;
    if (pieces->cancel) thane_generator_cancel(pieces->cancel);
    return pieces->most == 0 || --pieces->most > 0;
}

static void *cancel(void *model) {
    usleep(1000);
    thane_generator_cancel(model);
    return NULL;
}

static void generate(const char *path, const thane_options *options) {
    const char *messages = "[{\"role\": \"user\", \"content\": \"Hello there\"}]";
    const char *greedy = "{\"max_tokens\": 20, \"temperature\": 0}";
    thane_generator *model = NULL;
    char *error = NULL, *answer = NULL;
    check(thane_generator_open(path, options, &model, &error), error);
    struct pieces pieces = {.most = 0};
    check(thane_generator_answer(model, messages, greedy, on_text, &pieces, &answer, &error), error);
    printf("answer %s\n", answer);
    printf("pieces %zu\n", pieces.len);
    thane_free(answer);
    check(thane_generator_complete(model, "Once", greedy, NULL, NULL, &answer, &error), error);
    printf("completion %s\n", answer);
    thane_free(answer);
    check(thane_generator_answer(model, messages, "{\"schema\": {\"enum\": [\"red\"]}}", NULL, NULL, &answer, &error), error);
    assert(strstr(answer, "\\\"red\\\""));
    thane_free(answer);
    check(thane_generator_answer(model, messages, greedy, NULL, NULL, NULL, &error), error);

    const char *long_one = "{\"max_tokens\": 400, \"temperature\": 0, \"regex\": \"[a-z]{400}\"}";
    struct pieces first = {.most = 1};
    answer = NULL;
    assert(thane_generator_answer(model, messages, long_one, on_text, &first, &answer, &error) == THANE_CANCELLED);
    assert(answer && strstr(answer, "\"interrupted\""));
    thane_free(answer);
    struct pieces own = {.cancel = model};
    assert(thane_generator_answer(model, messages, long_one, on_text, &own, NULL, &error) == THANE_CANCELLED);
    pthread_t thread;
    pthread_create(&thread, NULL, cancel, model);
    thane_status status = thane_generator_answer(model, messages, long_one, NULL, NULL, NULL, &error);
    pthread_join(thread, NULL);
    assert(status == THANE_CANCELLED || status == THANE_OK);

    refused(thane_generator_answer(model, "{", greedy, NULL, NULL, NULL, &error), &error, "the messages: ");
    refused(thane_generator_answer(model, messages, "{\"heat\": 1}", NULL, NULL, NULL, &error), &error, "heat");
    refused(thane_generator_answer(model, messages, "{\"temperature\": -1}", NULL, NULL, NULL, &error), &error, "temperature");
    refused(thane_generator_answer(model, NULL, NULL, NULL, NULL, NULL, &error), &error, "messages: expected a text");
    thane_generator_cancel(NULL);
    thane_generator_close(model);
}

int main(int argc, char **argv) {
    assert(argc == 4);
    assert(thane_abi() == THANE_ABI && strlen(thane_version()) > 4);
    thane_free(NULL);
    thane_options options = {.numerics = "f32", .threads = 1};
    embed(argv[1], &options);
    rerank(argv[2], &options);
    generate(argv[3], &options);

    thane_embedder *embedder = NULL;
    char *error = NULL;
    refused(thane_embedder_open("tests/no-such", &options, &embedder, &error), &error, "no-such");
    refused(thane_embedder_open(NULL, NULL, &embedder, &error), &error, "model: expected a text");
    refused(thane_embedder_open(argv[1], NULL, NULL, &error), &error, "out: expected a place");
    thane_options bad = {.numerics = "slow"};
    refused(thane_embedder_open(argv[1], &bad, &embedder, &error), &error, "found `slow`");
    thane_options small = {.memory = 1000};
    refused(thane_embedder_open(argv[1], &small, &embedder, &error), &error, "memory");
    thane_generator *generator = NULL;
    refused(thane_generator_open(argv[1], NULL, &generator, &error), &error, "");
    return 0;
}
