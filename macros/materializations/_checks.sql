{#- Runs tests during a build and stores their results, the verdicts (docs/dbt/tests.md). The
    property `strandline.proved` contains the batch up to which each check has passed,
    `strandline.turn` the next bucket of keys to check, and `strandline.failed_turns` the buckets
    with failing keys. A test runs the same SELECT on the later batches and these buckets. -#}


{% macro _attached_checks(subject, owner) -%}
    {#- Returns the checks among the model's tests, with their inputs: [{id, name, arguments,
        subject}]. -#}
    {%- set checks = [] -%}
    {%- for node in graph.nodes.values() if node.resource_type == "test"
        and node.attached_node == model.unique_id -%}
        {%- set test = node.get("test_metadata") or {} -%}
        {%- set arguments = test.get("kwargs", {}) -%}
        {%- set own = dict(subject,
            key=strandline._as_list(arguments.get("unique_key")) or subject.key,
            cursor=arguments.get("cursor_field") or subject.cursor,
        ) -%}
        {%- do own.update({"incidents": strandline._incidents(own, test.get("name"), owner)}) -%}
        {%- set check = strandline._check_of(node, own) -%}
        {%- if check is not none and strandline._can_run(check) -%}
            {%- do checks.append(check) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(checks) }}
{%- endmacro %}


{% macro _check_of(node, subject) -%}
    {#- Returns a test as a check whose verdict can be stored, or none. A test with thresholds is
        unsuitable. A test with a `where` may depend on the time. A test that reads the ledger is
        unsuitable, because the ledger row may be written after the build. -#}
    {%- set names = ["matches_raw", "no_cursor_ties", "unique_key", "no_duplicates",
        "cursor_plausible", "row_hash_valid"] -%}
    {%- set test = node.get("test_metadata") or {} -%}
    {%- if test.get("namespace") != "strandline" or test.get("name") not in names
        or node.config.get("where") or node.config.get("enabled") is false
        or node.config.get("fail_calc", "count(*)") != "count(*)"
        or node.config.get("warn_if", "!= 0") not in ("!= 0", "> 0")
        or node.config.get("error_if", "!= 0") not in ("!= 0", "> 0") -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set arguments = dict(test.kwargs.items()
        | rejectattr("0", "in", ["model", "column_name"])) -%}
    {%- if arguments | select("in", ["row_condition", "max_share", "raw"]) | list
        or "at_boundary" in strandline._as_list(arguments.get("kinds")) or "(" in arguments | string
        or "{{" in arguments | string
        or subject.key | map("lower") | select("in", ["problem", "expected", "actual"]) | list -%}
        {{ return(none) }}
    {%- endif -%}
    {#- The key of the failing rows, which determines their bucket. -#}
    {%- set key = ["_cq_row_hash"] if test.name == "row_hash_valid"
        else subject.spec.key if test.name == "matches_raw" else subject.key -%}
    {{ return({
        "id": test.name ~ "." ~ local_md5(
            tojson([arguments, subject.incidents], sort_keys=true))[:8],
        "name": test.name,
        "arguments": arguments,
        "subject": dict(subject, key=key),
    }) }}
{%- endmacro %}


{% macro _can_run(check) -%}
    {#- Returns false if the test's configuration is wrong. In this case the test reports the error,
        and the build of the model succeeds. -#}
    {%- set subject, arguments = check.subject, check.arguments -%}
    {%- set names = subject.names | map("lower") | list -%}
    {%- set used = subject.key + strandline._as_list(subject.cursor) -%}
    {%- set kinds = strandline._as_list(arguments.get("kinds")) -%}
    {%- set tolerance = arguments.get("tolerance") -%}
    {{ return(
        (subject.cursor or check.name not in ("no_cursor_ties", "cursor_plausible"))
        and (check.name != "row_hash_valid" or strandline._can_hash(subject))
        and not used | map("lower") | reject("in", names) | list
        and not kinds | reject("in", ["across_batches", "in_batch"]) | list
        and (not tolerance or strandline._value(
            "select try_cast(" ~ strandline._literal(tolerance) ~ " as interval) is not null"))
    ) }}
{%- endmacro %}


{% macro _has_unproved(checks, spec, mark) -%}
    {#- Returns whether a check has not passed up to the newest batch that the table shows. -#}
    {%- for check in checks -%}
        {%- set proved = mark.proved.get(check.id, {}) -%}
        {%- for table in spec.tables if proved.get(table.name, -1) < table.head
            or check.id in mark.failed_turns -%}
            {{ return(true) }}
        {%- endfor -%}
    {%- endfor -%}
    {{ return(false) }}
{%- endmacro %}


{% macro _prove(target_table, spec, mark, plan, checks, snapshot) -%}
    {#- Runs the checks on a snapshot of the table and, after a write, reads the snapshot's commit,
        with one statement. Returns the verdicts to store and the commit: {proved, turn,
        failed_turns, day, commit}. -#}
    {%- set rebuilt = plan.step == "rebuild" -%}
    {%- set turn = 0 if rebuilt or mark is none else mark.turn -%}
    {%- set foreign = rebuilt or mark is none or strandline._raw_is_foreign(spec, mark) -%}
    {%- set heads = {} -%}
    {%- for table in spec.tables -%}
        {%- do heads.update({table.name: table.head}) -%}
    {%- endfor -%}
    {%- set proved, failed_turns, questions = {}, {}, [] -%}
    {%- for check in checks -%}
        {%- set before = none if foreign else mark.proved.get(check.id) -%}
        {%- set turns = (mark.failed_turns.get(check.id, []) if before else []) + [turn] -%}
        {%- set asked = strandline._asked(check.subject, before, turns) -%}
        {%- do check.subject.update({"rows": strandline._pinned(target_table, snapshot)}) -%}
        {#- Finds the buckets of the failing keys. Later tests check these buckets again, and skip
            the other rows of these batches. -#}
        {%- do questions.append(
            "select " ~ strandline._literal(check.id) ~ ", array_join(sort_array(collect_set("
            ~ strandline._key_bucket(check.subject.key, 30) ~ ")), ',') from (\n"
            ~ strandline._check_sql(check, asked) ~ "\n) as failures"
        ) -%}
        {%- do proved.update({check.id: heads}) -%}
    {%- endfor -%}
    {%- if plan.step != "nothing" -%}
        {%- do questions.append(strandline._written_commit_sql(target_table, snapshot)) -%}
    {%- endif -%}
    {%- set answers = {} -%}
    {%- for row in run_query(questions | join("\nunion all\n")) -%}
        {%- do answers.update({row[0]: row[1]}) -%}
        {%- if row[0] in proved and row[1] -%}
            {%- do failed_turns.update({row[0]: row[1].split(",") | map("int") | list}) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return({
        "proved": proved,
        "turn": (turn + 1) % 30,
        "failed_turns": failed_turns,
        "day": run_started_at.strftime("%Y-%m-%d"),
        "commit": fromjson(answers.get("commit", "null")),
    }) }}
{%- endmacro %}


{% macro _raw_is_foreign(spec, mark) -%}
    {#- Returns whether a raw table has a commit since the last build that is not a batch of the
        loader. -#}
    {%- for table in spec.tables -%}
        {%- set before = mark.tables[loop.index0].snapshot -%}
        {%- if before != table.snapshot and strandline._lineage(table, before).foreign -%}
            {{ return(true) }}
        {%- endif -%}
    {%- endfor -%}
    {{ return(false) }}
{%- endmacro %}


{% macro _asked(subject, proved, turns) -%}
    {#- Returns which rows a check must read, or none for all rows: {rows, buckets}. `rows` is the
        condition for rows of unchecked batches and rows without a valid batch number. The check
        reads all rows with the keys of these rows, and all keys in the given buckets. -#}
    {%- if not proved or subject.tables is not defined or strandline._prove_all() -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set tables = [] -%}
    {%- for table in subject.tables -%}
        {%- do tables.append({"name": table.name, "proved": proved.get(table.name, 0)}) -%}
    {%- endfor -%}
    {%- set conditions = [strandline._batches(tables, above="proved"), "_cq_batch is null",
        "_cq_batch < 1"] -%}
    {%- if tables | length > 1 -%}
        {%- do conditions.append("coalesce(_cq_table not in ("
            ~ strandline._literal_list(tables | map(attribute="name")) ~ "), true)") -%}
    {%- endif -%}
    {{ return({
        "rows": "(" ~ conditions | join(" or ") ~ ")",
        "buckets": strandline._key_bucket(subject.key, 30) ~ " in (" ~ turns | unique | join(", ")
            ~ ")" if turns else none,
    }) }}
{%- endmacro %}


{% macro _subject_of(spec, relation, snapshot=none) -%}
    {#- Returns the input of the checks of a deduped_ table: {relation, rows, versions, key, cursor,
        names, types, tables, spec}. -#}
    {{ return({
        "relation": relation,
        "rows": strandline._pinned(relation, snapshot),
        "versions": "(select " ~ strandline._one_task(spec) ~ "* from (\n" ~ spec.sql
            ~ "\n) as everything where " ~ strandline._batches(spec.tables, up_to="head") ~ ")",
        "key": spec.key,
        "cursor": spec.cursor,
        "names": spec.columns,
        "types": spec.types,
        "tables": spec.tables,
        "spec": spec,
    }) }}
{%- endmacro %}


{% macro _check_sql(check, asked) -%}
    {#- Returns the SELECT of a check's failing rows. `asked` is a condition that restricts the
        checked rows; "false" means that there are no unchecked rows. -#}
    {%- set arguments, subject = check.arguments, check.subject -%}
    {%- if asked == "false" and check.name != "matches_raw" -%}
        {{ strandline._nothing() }}
    {%- elif check.name == "matches_raw" -%}
        {{ strandline._matches_raw_sql(subject, asked) }}
    {%- elif check.name == "no_cursor_ties" -%}
        {{ strandline._no_cursor_ties_sql(subject, asked) }}
    {%- elif check.name == "unique_key" -%}
        {{ strandline._unique_key_sql(subject, asked) }}
    {%- elif check.name == "no_duplicates" -%}
        {{ strandline._no_duplicates_sql(
            subject, asked, arguments.get("kinds"), arguments.get("max_share", 0)) }}
    {%- elif check.name == "cursor_plausible" -%}
        {{ strandline._cursor_plausible_sql(subject, asked, arguments.get("tolerance")) }}
    {%- else -%}
        {{ strandline._row_hash_valid_sql(subject, asked) }}
    {%- endif -%}
{%- endmacro %}


{% macro _version_key(subject) -%}
    {#- Returns the key for comparing versions by batch. It includes `_cq_table` if the model reads
        several raw tables, because each raw table numbers its batches separately. -#}
    {{ return(subject.key + (["_cq_table"] if subject.spec is defined and subject.spec.union
        else [])) }}
{%- endmacro %}


{% macro _touched(subject, rows, asked) -%}
    {#- Returns those of `rows` that a check must read, see _asked(). Without a key, rows are matched
        by their hash. The keys of new batches are read only from files that contain these batches.
        All checks contain the same subquery, which Spark then runs only once. In the subquery, a
        column of the key would hide an outer alias of the same name, so that alias begins with
        `_cq_`. -#}
    {%- set key = subject.key or ["_cq_row_hash"] -%}
    {%- if asked is none -%}
        {{ return(rows) }}
    {%- endif -%}
    (
        select *
        from {{ rows }} as _cq_candidates
        where exists (
            select 1
            from (
                select {{ strandline._column_list(key) }}
                from {{ subject.versions }} as new_versions
                where {{ asked.rows }}
                union all
                select {{ strandline._column_list(key) }}
                from {{ subject.rows }} as new_rows
                where {{ asked.rows }}
            ) as touched
            where {{ strandline._same_key(key, "touched", "_cq_candidates") }}
        )
        {%- if asked.buckets %}
        or {{ asked.buckets }}
        {%- endif %}
    )
{%- endmacro %}
