{% macro acknowledged(settings, owner) -%}
    {#-
        The incidents that a table's config.meta.strandline.acknowledged lists, after checking their form:
        [{tests, first, last, snapshot, rows, who, when, why}].
    -#}
    {%- set incidents = [] -%}
    {%- for said in settings.get("acknowledged") or [] -%}
        {%- for name in ["test", "who", "when", "why"] if not said.get(name) -%}
            {{ strandline.not_an_acknowledgement(owner, "lacks `" ~ name ~ "`") }}
        {%- endfor -%}
        {%- for name in said if name not in ["test", "batches", "snapshot", "rows", "who", "when", "why"] -%}
            {{ strandline.not_an_acknowledgement(owner, "has the unknown key `" ~ name ~ "`") }}
        {%- endfor -%}
        {%- set batches = said.get("batches") -%}
        {%- set batches = [batches, batches] if batches is number else (batches or []) | list -%}
        {%- if (batches | length == 2) == (said.get("snapshot") is not none) or batches | reject("number") | list
            or batches != batches | sort -%}
            {{ strandline.not_an_acknowledgement(owner, "needs either `batches`, as a number or [first, last], or a `snapshot`") }}
        {%- endif -%}
        {%- do incidents.append({
            "tests": [said.test] if said.test is string else said.test,
            "first": batches[0] if batches else none,
            "last": batches[1] if batches else none,
            "snapshot": said.get("snapshot"),
            "rows": said.get("rows", 0),
            "who": said.who | string,
            "when": said.when | string,
            "why": said.why | string,
        }) -%}
    {%- endfor -%}
    {{ return(incidents) }}
{%- endmacro %}


{% macro not_an_acknowledgement(owner, problem) -%}
    {{ exceptions.raise_compiler_error(
        owner ~ ": an entry of config.meta.strandline.acknowledged " ~ problem ~ ". Example: {test: batches_accounted, "
        ~ "batches: [3, 5], who: ada, when: '2026-03-01', why: 'rows of a customer erased by request'}; for a commit of "
        ~ "others, write `snapshot: 8122034` instead of batches."
    ) }}
{%- endmacro %}


{% macro acknowledged_of(relation, test) -%}
    {#- The incidents of a table that are acknowledged for one test. Logs each, so that none is overlooked. -#}
    {%- set found = [] -%}
    {%- for one in strandline.acknowledged(strandline.tested_settings(relation), strandline.test_on(relation))
        if test in one.tests -%}
        {%- if one.last is not none and one.last > (strandline.head_batch(relation) or 0) -%}
            {{ exceptions.raise_compiler_error(
                strandline.test_on(relation) ~ ": batch " ~ one.last ~ " is acknowledged but does not exist yet. Only batches "
                ~ "that exist can be acknowledged: correct config.meta.strandline.acknowledged."
            ) }}
        {%- endif -%}
        {{ log(
            strandline.test_on(relation) ~ ": "
            ~ ("snapshot " ~ one.snapshot if one.snapshot else "batches " ~ one.first ~ " to " ~ one.last)
            ~ " acknowledged by " ~ one.who ~ ", " ~ one.when ~ ": " ~ one.why, info=true
        ) }}
        {%- do found.append(one) -%}
    {%- endfor -%}
    {{ return(found) }}
{%- endmacro %}


{% macro not_acknowledged(incidents, batch, snapshot="cast(null as bigint)") -%}
    {#- The condition that a failing row belongs to none of the incidents; a row without a batch counts as batch 0. -#}
    {%- set conditions = ["true"] -%}
    {%- for one in incidents -%}
        {%- if one.snapshot -%}
            {%- do conditions.append("not (" ~ snapshot ~ " <=> " ~ one.snapshot ~ ")") -%}
        {%- else -%}
            {%- do conditions.append(
                "not (coalesce(" ~ batch ~ ", 0) between " ~ one.first ~ " and " ~ one.last
                ~ " and " ~ snapshot ~ " is null)"
            ) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(conditions | join(" and ")) }}
{%- endmacro %}
