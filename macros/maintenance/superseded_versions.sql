{% macro superseded_versions(
    relation, primary_key, cursor_field, batch, versions, floor, only_repeated, whole=[]
) -%}
    {{- return(adapter.dispatch("superseded_versions", "strandline")(
        relation, primary_key, cursor_field, batch, versions, floor, only_repeated, whole
    )) -}}
{%- endmacro %}


{% macro default__superseded_versions(
    relation, primary_key, cursor_field, batch, versions, floor, only_repeated, whole
) -%}
    {#- Python's twin is loader/maintenance/retention.py; a test holds the two against each other. -#}
    {%- set keys = [] -%}
    {%- for key in primary_key -%}
        {%- do keys.append(strandline.quoted(key)) -%}
    {%- endfor -%}
    select
        _cq_batch,
        _cq_seq
    from (
        select
            *,
            row_number() over (
                partition by {{ keys | join(", ") }}
                order by {{ strandline.version_order(cursor_field) }} desc
            ) as _cq_age,
            lag(_cq_content) over (
                partition by {{ keys | join(", ") }}, _cq_generation
                {%- if cursor_field %}, {{ strandline.quoted(cursor_field) }}{% endif %}
                order by _cq_batch, _cq_seq
            ) as _cq_content_before
        from (
            select
                *,
                struct(_cq_deleted as deleted, if(_cq_deleted, null, _cq_row_hash) as row_hash) as _cq_content
            from {{ relation }} as versions
            where _cq_batch <= {{ batch }}
        ) as considered
    ) as aged
    where _cq_age > {{ versions }}
    {%- if cursor_field %}
        {#- null without a cursor: not certainly below #}
        and coalesce({{ strandline.quoted(cursor_field) }} < {{ floor }}, false)
    {%- endif %}
    {%- if only_repeated %}
        and _cq_content <=> _cq_content_before
    {%- endif %}
    {%- if whole %}
        and _cq_batch not in ({{ whole | sort | join(", ") }})
    {%- endif %}
{%- endmacro %}
