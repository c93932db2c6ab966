{% macro deduped_latest(relation, primary_key, cursor_field=none, as_of=none, delete_stale=false) -%}
    {{- return(adapter.dispatch("deduped_latest", "strandline")(
        relation, primary_key, cursor_field, as_of, delete_stale
    )) -}}
{%- endmacro %}


{% macro spark__deduped_latest(relation, primary_key, cursor_field, as_of, delete_stale) -%}
    {%- set owner = "deduped_latest(" ~ relation ~ ")" -%}
    {%- set keys = strandline.key_columns(primary_key, owner) -%}
    {%- do strandline.check_shared_relation(relation, keys, owner) -%}
    {%- set versions = strandline.versions_as_of(relation, as_of, owner) -%}
    {%- if delete_stale and execute -%}
        {%- do strandline.check_ledger(relation, owner) -%}
        {%- set refreshes = strandline.complete_refreshes(relation, strandline.batch_at(relation, as_of), owner) -%}
        {%- set versions = strandline.generations_from(versions, strandline.refresh_floor(refreshes)) -%}
    {%- endif -%}
    {{- strandline.latest_sql(versions, keys, cursor_field) -}}
{%- endmacro %}


{% macro latest_sql(versions, primary_key, cursor_field, tables=[], row_filter=none) -%}
    {%- if row_filter %}
    select *
    from (
    {%- endif %}
    select newest.*
    from (
        {#- max_by over the whole struct allows MAP columns, and only the winner is shuffled -#}
        {{- "\n" }}        select max_by(struct(*), {{ strandline.version_order(cursor_field, none, tables) }}) as newest
        from {{ versions }} as versions
        group by
            {%- for key in primary_key %}
            {{ strandline.quoted(key) }}{{ "," if not loop.last }}
            {%- endfor %}
    ) as keys
    where not coalesce(newest._cq_deleted, false)
    {%- if row_filter %}
    ) as latest
    where {{ row_filter }}
    {%- endif %}
{%- endmacro %}
