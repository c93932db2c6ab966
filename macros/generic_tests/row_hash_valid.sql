{% test row_hash_valid(model, row_condition=none) %}
    {{ config(severity="error", tags=["strandline"]) }}
    {{ strandline._row_test_sql("row_hash_valid", model, row_condition=row_condition) }}
{% endtest %}


{% macro _row_hash_valid_sql(subject, asked) -%}
    {#- Reads the raw tables instead of the model, because the loader's hash covers the columns of
        the raw tables. -#}
    {%- set relations = strandline._raw_relations(subject) -%}
    {%- for relation in relations or [subject.relation] -%}
    {%- set rows = relation if relations else subject.rows %}
    {%- set incidents = [] %}
    {%- for incident in subject.get("incidents", [])
        if incident.get("table") in (none, strandline._table_name(relation)) %}
        {%- do incidents.append(dict(incident, table=none)) %}
    {%- endfor %}
    {%- set known = strandline._columns(relation) if relations | length > 1 else {} %}
    select
        {%- for name in (subject.spec.key if known else []) if name | lower in known %}
        {{ strandline._quote(name) }},
        {%- endfor %}
        {{ "_cq_batch, _cq_seq, _cq_row_hash, computed_row_hash" if relations | length > 1
            else "*" }},
        'its columns are not those that the loader wrote' as problem
    from (
        select
            *,
            {{ strandline.row_hash(relation) }} as computed_row_hash
        from {{ rows }} as versions
        {%- if asked is not none and not subject.spec.union %}
        where {{ asked.rows }}{{ " or " ~ asked.buckets if asked.buckets }}
        {%- endif %}
    ) as hashed
    where _cq_row_hash is distinct from computed_row_hash
        and {{ strandline._not_acknowledged(incidents) }}
    {{- "\n    union all" if not loop.last }}
    {%- endfor -%}
{%- endmacro %}


{% macro _raw_relations(subject) -%}
    {#- Returns the raw tables that a deduped_ model reads, or [] for other tables. -#}
    {%- set relations = [] -%}
    {%- for table in subject.get("tables") or [] -%}
        {%- do relations.append(strandline._relation_of(table.name)) -%}
    {%- endfor -%}
    {{ return(relations) }}
{%- endmacro %}


{% macro _can_hash(subject) -%}
    {%- for relation in strandline._raw_relations(subject)
        if strandline._hash_obstacle(relation) -%}
        {{ return(false) }}
    {%- endfor -%}
    {{ return(true) }}
{%- endmacro %}
