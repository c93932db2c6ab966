{% macro dependents() -%}
    {#-
        All tables of the catalog that a deduped_ materialization keeps: [{name, history, raw, batches,
        primary_key, cursor_field}], whichever project built them. Python's twin is
        loader/maintenance/dependents.py.
    -#}
    {%- set catalog = run_query("select current_catalog()").columns[0].values()[0] -%}
    {%- set found = [] -%}
    {%- for namespace in strandline.namespaces(strandline.quoted(catalog)) -%}
        {%- for row in run_query("show tables in " ~ namespace) if not row[2] -%}
            {%- set table = namespace ~ "." ~ strandline.quoted(row[1]) -%}
            {%- if "strandline.watermark" in strandline.table_properties(table) -%}
                {%- set stored = strandline.watermark(table) -%}
                {%- do found.append({
                    "name": row[0] ~ "." ~ row[1],
                    "history": stored.materialization == "deduped_history",
                    "raw": stored.get("raw") or [],
                    "batches": stored.batches,
                    "primary_key": (stored.primary_key or []) | reject("equalto", "_cq_table") | list,
                    "cursor_field": stored.cursor_field,
                }) -%}
            {%- endif -%}
        {%- endfor -%}
    {%- endfor -%}
    {{ return(found | sort(attribute="name")) }}
{%- endmacro %}


{% macro namespaces(within) -%}
    {#- All namespaces of a catalog or a namespace, quoted, those inside of others too. -#}
    {%- set catalog = run_query("select current_catalog()").columns[0].values()[0] -%}
    {%- set found = [] -%}
    {%- for row in run_query("show namespaces in " ~ within) -%}
        {%- set name = strandline.quoted(catalog) ~ "." ~ row[0] -%}
        {%- do found.append(name) -%}
        {%- do found.extend(strandline.namespaces(name)) -%}
    {%- endfor -%}
    {{ return(found) }}
{%- endmacro %}


{% macro depends_on(dependent, relation) -%}
    {#- Whether a table is, or may be, built from a raw table: one that does not say may be. -#}
    {%- set name = strandline.name_of(relation) | lower -%}
    {{ return(not dependent.raw or name in dependent.raw | map("lower") | list) }}
{%- endmacro %}


{% macro merged_to(dependent, relation) -%}
    {#- The newest batch of a raw table that a table has certainly merged. -#}
    {%- set name = strandline.name_of(relation) | lower -%}
    {%- for raw, batch in dependent.batches.items() if raw | lower in (name, "") -%}
        {{ return(batch | int) }}
    {%- endfor -%}
    {{ return(0) }}
{%- endmacro %}


{% macro agrees(dependent, primary_key, cursor_field) -%}
    {#-
        Whether what stays of each key is all that a table needs. The newest of a coarser key is among
        the newest of a finer one; what repeats what, only the same key tells.
    -#}
    {%- set keys = primary_key | map("lower") | list -%}
    {%- set own = dependent.primary_key | map("lower") | list -%}
    {%- set beyond = own | reject("in", keys) | list -%}
    {%- set same_order = (dependent.cursor_field or "") | lower == (cursor_field or "") | lower -%}
    {{ return(
        same_order
        and own | length > 0
        and beyond | length == 0
        and (not dependent.history or own | unique | list | length == keys | unique | list | length)
    ) }}
{%- endmacro %}
