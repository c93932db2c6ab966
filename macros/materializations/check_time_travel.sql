{% macro check_time_travel(sql, views, goal, owner) -%}
    {#-
        Refuses what shows a table as it was. New batches are looked for in the raw table as it is now, and so is the
        state of another table: that a tag or a branch of it moves goes unseen. Spark's plan does not show `as of`.
    -#}
    {%- set raw = goal.tables | map(attribute="name") | list -%}
    {%- set named = "(?i)((?:`[^`]*`|\\w+)(?:\\s*\\.\\s*(?:`[^`]*`|\\w+))*)\\s+(?:for\\s+)?"
        ~ "((?:(?:system_)?(version)|timestamp|system_time)\\s+as\\s+of)\\b\\s*(\\d*)" -%}
    {%- set by_name = [] -%}
    {%- for text in [sql] + views.values() | select | list -%}
        {%- set code = strandline.code_of(text) -%}
        {%- for found in modules.re.finditer(named, code) -%}
            {%- set name = modules.re.sub("\\s*\\.\\s*", ".", found.group(1)).replace("`", "") -%}
            {%- if strandline.is_any_of(name, raw) or found.group(3) and not found.group(4) -%}
                {%- do strandline.refuse_time_travel(name, found.group(2), strandline.is_any_of(name, raw), owner) -%}
            {%- endif -%}
        {%- endfor -%}
        {#- As a column's name may, a part of a table's name may begin like this: which one it is, only Spark can say. -#}
        {%- do by_name.extend(modules.re.findall("(?i)\\.\\s*`?(?:branch|tag|snapshot_id|at_timestamp)_", code)) -%}
    {%- endfor -%}
    {%- set reads = strandline.read_plan(sql, []) if by_name else none -%}
    {%- for read in (reads or {}).get("tables") or [] -%}
        {%- for name in raw + goal.others | list -%}
            {%- set found = modules.re.search(
                "(?:^|[ .])" ~ modules.re.escape(name | lower) ~ "\\.((branch|tag)_[^ ]+|(?:snapshot_id|at_timestamp)_\\d+)", read | lower
            ) -%}
            {%- if found is not none and (name in raw or found.group(2)) -%}
                {%- do strandline.refuse_time_travel(name, found.group(1), name in raw, owner) -%}
            {%- endif -%}
        {%- endfor -%}
    {%- endfor -%}
{%- endmacro %}


{% macro refuse_time_travel(name, by, is_raw, owner) -%}
    {%- if is_raw -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": it reads " ~ name ~ " at a tag, a branch or a time (" ~ by ~ "), but new batches are looked for in the "
            ~ "table as it is now. Read the table itself, and name the moment in the model's config: as_of={'tag': 'january'}, "
            ~ "a batch, a time or a snapshot."
        ) }}
    {%- endif -%}
    {{ exceptions.raise_compiler_error(
        owner ~ ": it reads " ~ name ~ " at a tag or a branch (" ~ by ~ "), and when that moves, no build sees it. Read the "
        ~ "table itself, or one Iceberg snapshot of it by its number: version as of 8122034."
    ) }}
{%- endmacro %}
