{% macro versions_as_of(relation, as_of, owner) -%}
    {#-
        The versions that a raw relation held then. All rows of a batch carry the time at which its
        sync began, so a time stands for a set of batches. Iceberg reads its snapshots and tags itself.
    -#}
    {%- do strandline.check_name(relation | string) -%}
    {%- set moment = strandline.moment(as_of, owner) -%}
    {%- if moment is none -%}
        {{ return(relation) }}
    {%- endif -%}
    {%- if moment.kind in ("snapshot", "tag") -%}
        {{ return(relation ~ " version as of " ~ moment.literal) }}
    {%- endif -%}
    {%- do strandline.check_not_compacted(relation, as_of, owner) -%}
    {%- set column = "_cq_batch" if moment.kind == "batch" else "_cq_sync_time" -%}
    {{ return("(select * from " ~ relation ~ " as all_versions where " ~ column ~ " <= " ~ moment.literal ~ ")") }}
{%- endmacro %}


{% macro moment(as_of, owner) -%}
    {#- What `as_of` names: {kind, literal}. A number is a batch, a string is a time in UTC. -#}
    {%- if as_of is none -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set named = as_of if as_of is mapping else {("batch" if as_of is number else "time"): as_of} -%}
    {%- set kind = (named.keys() | list | first) if named | length == 1 else none -%}
    {%- if kind in ("batch", "snapshot") and modules.re.match("^[0-9]+$", named[kind] | string) -%}
        {{ return({"kind": kind, "literal": named[kind] | string}) }}
    {%- elif kind == "tag" -%}
        {{ return({"kind": kind, "literal": strandline.text_literal(named[kind])}) }}
    {%- elif kind == "time" and strandline.utc_text(named[kind]) -%}
        {{ return({"kind": kind, "literal": "timestamp " ~ strandline.text_literal(strandline.utc_text(named[kind]))}) }}
    {%- endif -%}
    {%- if kind == "time" and modules.re.match("^[0-9]+$", named[kind] | string | trim) -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": as_of is '" ~ named[kind] ~ "', a string, which means a time. A batch is a number: as_of="
            ~ named[kind] | trim ~ ", or {'batch': '" ~ named[kind] | trim ~ "'} if you have it as a string."
        ) }}
    {%- endif -%}
    {{ exceptions.raise_compiler_error(
        owner ~ ": as_of is " ~ as_of ~ ". Give a batch (7), a time in UTC ('2025-01-31 12:00:00'), "
        ~ "or an Iceberg snapshot or tag of the raw table ({'snapshot': 123} or {'tag': 'january'})."
    ) }}
{%- endmacro %}


{% macro utc_text(time) -%}
    {#- A time with its zone, UTC unless it names another, as a session may be in any zone; none if it is not a time. -#}
    {%- set parts = modules.re.match(
        "^([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[ T]([0-9]{1,2}:[0-9]{2})(:[0-9]{2}(?:[.][0-9]+)?)? ?(.+)?)?$", time | string | trim
    ) -%}
    {%- if parts is none -%}
        {{ return(none) }}
    {%- endif -%}
    {{ return(
        parts.group(1) ~ " " ~ (parts.group(2) or "00:00") ~ (parts.group(3) or ":00") ~ " " ~ (parts.group(4) or "UTC")
    ) }}
{%- endmacro %}


{% macro batch_at(relation, as_of, owner="as_of") -%}
    {#- The last batch that a raw relation held then; none, meaning no limit, if `as_of` is none. -#}
    {%- set moment = strandline.moment(as_of, owner) -%}
    {%- if moment is none -%}
        {{ return(none) }}
    {%- endif -%}
    {%- if moment.kind == "batch" -%}
        {{ return(moment.literal | int) }}
    {%- endif -%}
    {{ return(strandline.head_batch(strandline.versions_as_of(relation, as_of, owner)) or 0) }}
{%- endmacro %}


{% macro check_not_compacted(relation, as_of, owner) -%}
    {#- Compaction removes old versions, so earlier batches and times can no longer be shown. -#}
    {#- What a unit test gives in place of a table has no schema. -#}
    {%- if not execute or relation is string or not relation.schema -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set properties = strandline.table_properties(relation) -%}
    {%- set compacted_to = properties.get("strandline.compacted_to", "0") | int -%}
    {%- if compacted_to == 0 -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set moment = strandline.moment(as_of, owner) -%}
    {%- if moment.kind == "batch" -%}
        {%- set batch = moment.literal | int -%}
    {%- elif moment.kind == "time" -%}
        {%- set batch = strandline.head_batch(
            "(select * from " ~ relation ~ " as all_versions where _cq_sync_time <= " ~ moment.literal ~ ")"
        ) or 0 -%}
    {%- else -%}
        {%- set batch = strandline.head_batch(relation ~ " version as of " ~ moment.literal) or 0 -%}
    {%- endif -%}
    {%- if batch < compacted_to -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": as_of " ~ as_of ~ " is batch " ~ batch ~ ", but older versions were compacted away up to batch "
            ~ compacted_to ~ ". Ask for batch " ~ compacted_to ~ " or later, or read an Iceberg snapshot that still exists in "
            ~ "a model whose SELECT is strandline.deduped_latest(..., as_of={'snapshot': ...})."
        ) }}
    {%- endif -%}
{%- endmacro %}


{% macro table_properties(relation) -%}
    {%- set properties = {} -%}
    {%- for row in run_query("show tblproperties " ~ relation) -%}
        {%- do properties.update({row[0]: strandline.unveiled(row[1])}) -%}
    {%- endfor -%}
    {{ return(properties) }}
{%- endmacro %}


{% macro veiled(text) -%}
    {#-
        A property's value in hexadecimal. Spark redacts any value that contains `url`, `token` or another word
        that hints at a secret, and the name of a table or a key, or a SELECT, may well contain one.
    -#}
    {{ return("hex:" ~ text.encode("utf-8").hex()) }}
{%- endmacro %}


{% macro unveiled(value) -%}
    {{ return("".encode("utf-8").fromhex(value[4:]).decode("utf-8") if value[:4] == "hex:" else value) }}
{%- endmacro %}
