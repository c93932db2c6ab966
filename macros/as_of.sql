{% macro as_of(relation, moment, owner="as_of()") -%}
    {#- Returns the versions that a raw table contained at a point in time. All rows of a batch have
        the start time of the batch's sync, so a time selects all batches whose sync started by
        then. For Iceberg snapshots and tags, Iceberg itself reads the versions. -#}
    {%- set parsed = strandline._moment(moment, owner) -%}
    {%- if parsed is none -%}
        {{ return(relation) }}
    {%- elif parsed.kind in ("snapshot", "tag") -%}
        {{ return(strandline._pinned(relation, parsed.literal)) }}
    {%- endif -%}
    {%- do strandline._check_not_compacted(relation, moment, owner) -%}
    {{ return("(select * from " ~ relation ~ " as everything where " ~ strandline._until(parsed)
        ~ ")") }}
{%- endmacro %}


{% macro _until(parsed) -%}
    {{ return(("_cq_batch" if parsed.kind == "batch" else "_cq_sync_time") ~ " <= "
        ~ parsed.literal) }}
{%- endmacro %}


{% macro _moment(moment, owner) -%}
    {#- Parses a point in time. A number is a batch, and a string is a time in UTC. Returns {kind,
        literal}. -#}
    {%- if moment is none -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set given = moment if moment is mapping
        else {("batch" if moment is number else "time"): moment} -%}
    {%- set kind = (given.keys() | list | first) if given | length == 1 else none -%}
    {%- set value = given[kind] | string | trim if kind else "" -%}
    {%- if kind in ("batch", "snapshot") and value and not value.strip("0123456789") -%}
        {{ return({"kind": kind, "literal": value}) }}
    {%- elif kind == "tag" -%}
        {{ return({"kind": kind, "literal": strandline._literal(value)}) }}
    {%- elif kind == "time" and value | length >= 10 and value[4] == "-" and value[7] == "-" -%}
        {#- The literal contains a time zone, because the session may have any time zone. -#}
        {%- set rest = value[11:] | trim -%}
        {%- set zone = rest.lstrip("0123456789:. ") -%}
        {%- set clock = rest[:rest | length - zone | length] | trim or "00:00" -%}
        {%- set literal = value[:10] ~ " " ~ clock ~ (":00" if clock.count(":") == 1 else "") ~ " "
            ~ (zone or "UTC") -%}
        {{ return({"kind": kind, "literal": "timestamp " ~ strandline._literal(literal)}) }}
    {%- endif -%}
    {{ exceptions.raise_compiler_error(
        owner ~ ": as_of is " ~ tojson(moment) ~ ". Pass a batch (7), a time in UTC ('2025-01-31 "
        ~ "12:00:00'), or an Iceberg snapshot or tag of the raw table ({'snapshot': 123} or "
        ~ "{'tag': 'january'})."
    ) }}
{%- endmacro %}


{% macro _batch_as_of(relation, moment, owner) -%}
    {#- Returns the newest batch that a raw table contained at a point in time, or none if `moment`
        is none. -#}
    {%- set parsed = strandline._moment(moment, owner) -%}
    {%- if parsed is none -%}
        {{ return(none) }}
    {%- elif parsed.kind == "batch" -%}
        {{ return(parsed.literal | int) }}
    {%- endif -%}
    {%- set versions = strandline._pinned(relation, parsed.literal)
        if parsed.kind in ("snapshot", "tag")
        else relation ~ " as versions where " ~ strandline._until(parsed) -%}
    {{ return((strandline._value("select max(_cq_batch) from " ~ versions) or 0) | int) }}
{%- endmacro %}


{% macro _check_not_compacted(relation, moment, owner) -%}
    {#- Rejects a batch or time from which compaction has removed superseded versions. -#}
    {%- if not execute or target.type != "spark" or relation is string or not relation.schema -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set compacted = strandline._properties(relation).get(
        "strandline.compacted_to", "0") | int -%}
    {%- if compacted and strandline._batch_as_of(relation, moment, owner) < compacted -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": as_of " ~ tojson(moment) ~ " is before batch " ~ compacted
            ~ ", and compaction has removed superseded versions up to that batch. Pass batch "
            ~ compacted ~ " or later, or an Iceberg snapshot that still exists: "
            ~ "deduped_latest(..., as_of={'snapshot': ...})."
        ) }}
    {%- endif -%}
{%- endmacro %}
