{% test cursor_plausible(model, unique_key=none, cursor_field=none, tolerance=none,
    row_condition=none) %}
    {{ config(severity="error", error_if="> 0", tags=["strandline"]) }}
    {{ strandline._row_test_sql("cursor_plausible", model, unique_key, cursor_field, row_condition,
        ["cursor"], {"tolerance": tolerance}) }}
{% endtest %}


{% macro _cursor_plausible_sql(subject, asked, tolerance=none) -%}
    {#-
        Returns the rows with one of three problems:
        - The cursor is missing. Only a lookback or a full read can find the next change of the row.
        - The cursor is later than the sync that read the row. Until that time has passed, it must
          not become the stored cursor.
        - The cursor is lower than in an earlier batch. The latest table shows the version with the
          higher cursor.
        Rows that a later full refresh or repair has reread are ignored.
    -#}
    {%- set current = strandline._since_full_refresh(subject) or "true" -%}
    {%- set cursor = strandline._quote(subject.cursor) -%}
    {%- set type = strandline._cursor_type(subject) -%}
    {%- set key = strandline._version_key(subject) -%}
    {%- set columns = strandline._column_list((key + [subject.cursor]) | unique | list) -%}
    select *
    from (
        select
            {{ columns }},
            _cq_generation,
            _cq_batch,
            _cq_seq,
            _cq_sync_time,
            case
                when {{ cursor }} is null and not coalesce(_cq_deleted, false)
                    then 'the cursor is missing'
                {%- if strandline._is_time(type) %}
                when {{ strandline._is_ahead(cursor, type, tolerance) }}
                    then 'the cursor lies in the future of its sync'
                {%- endif %}
                {%- if subject.key %}
                when {{ cursor }} < max({{ cursor }}) over (
                    partition by {{ strandline._column_list(key) }}, _cq_generation
                    order by _cq_batch
                    range between unbounded preceding and 1 preceding
                ) then 'the cursor is lower than that of an earlier batch'
                {%- endif %}
            end as problem
        from {{ strandline._touched(subject, subject.versions, asked) }} as versions
        where {{ current }}
    ) as _cq_judged
    where problem is not null
        and {{ strandline._not_acknowledged(subject.get("incidents", [])) }}
        {%- if subject.key %}
        and not exists (
            select 1
            from {{ subject.versions }} as newer
            where newer._cq_generation > 1
                and newer._cq_generation > _cq_judged._cq_generation
                and {{ strandline._same_key(key, "newer", "_cq_judged") }}
        )
        {%- endif %}
{%- endmacro %}


{% macro _since_full_refresh(subject) -%}
    {#- Returns the condition for versions that no complete full refresh has replaced, or none if
        there was no complete full refresh. -#}
    {%- set tables = [] -%}
    {%- for relation in strandline._raw_relations(subject) or [subject.relation] -%}
        {%- set syncs = strandline._ledger_of(relation, "cursor_plausible") -%}
        {%- set refreshes = strandline._full_refreshes(relation, none, "cursor_plausible")
            if syncs is not none and strandline._exists(syncs) else [] -%}
        {%- do tables.append({"name": strandline._table_name(relation),
            "floor": strandline._generation_floor(refreshes)}) -%}
    {%- endfor -%}
    {{ return(strandline._from_generations(tables)) }}
{%- endmacro %}
