{% macro sharers(relation) -%}
    {#- The sources that share a raw table (`shared: true`), as the loader recorded them; [] for any other table. -#}
    {#- By name: --empty and --sample would render a relation as a SELECT, which has no properties. -#}
    {%- set name = relation if relation is string else strandline.full_name(relation) -%}
    {%- set testing = model is defined and model.resource_type == "test" -%}
    {%- set properties = strandline.properties_told(name) if testing else strandline.table_properties(name) -%}
    {{ return(strandline.sharers_in(properties)) }}
{%- endmacro %}


{% macro sharers_in(properties) -%}
    {{ return(fromjson(properties.get("strandline.sources", "{}")) | list | sort) }}
{%- endmacro %}


{% macro check_shared_key(table, primary_key, owner) -%}
    {#- Each source of a shared table has its own cursors and generations: rows of two are never versions of one row. -#}
    {%- set sources = table.sources -%}
    {%- if sources and "_cq_source_name" not in primary_key | map("lower") | list -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": " ~ table.relation ~ " is shared by the sources " ~ sources | join(", ") ~ ", so its source and its key "
            ~ "together identify a row. Set primary_key=['_cq_source_name', '" ~ primary_key | join("', '") ~ "']."
        ) }}
    {%- endif -%}
{%- endmacro %}


{% macro check_shared_relation(relation, primary_key, owner) -%}
    {#- The same for a macro, which may be given any relation: only a table beside a ledger can be a raw one. -#}
    {%- do strandline.check_name(relation | string) -%}
    {%- set syncs = strandline.syncs_relation(relation.schema)
        if execute and relation is not string and relation.schema and (flags.WHICH != "compile" or flags.INTROSPECT) else none -%}
    {%- if syncs is not none and strandline.exists(syncs) and strandline.exists(relation) -%}
        {%- set table = {"relation": relation, "sources": strandline.sharers(relation)} -%}
        {%- do strandline.check_shared_key(table, primary_key, owner) -%}
    {%- endif -%}
{%- endmacro %}


{% macro refresh_floor(refreshes) -%}
    {#- The generation of the newest complete full refresh; {source: generation} for a shared table. -#}
    {%- set floors = {} -%}
    {%- for refresh in refreshes -%}
        {%- do floors.update({refresh.get("source") or "": refresh.generation}) -%}
    {%- endfor -%}
    {{ return(floors.get("", floors or none)) }}
{%- endmacro %}


{% macro shown_from(floor) -%}
    {#- The condition that no complete full refresh has overruled a version's generation. -#}
    {%- if floor is mapping -%}
        _cq_generation >= case _cq_source_name
        {%- for source, generation in floor | dictsort %} when {{ strandline.text_literal(source) }} then {{ generation }}
        {%- endfor %} else 0 end
    {%- else -%}
        _cq_generation >= {{ floor }}
    {%- endif -%}
{%- endmacro %}


{% macro shown_of(tables) -%}
    {#- The same condition for all tables that a model reads; none if nothing is overruled. -#}
    {%- if tables | map(attribute="floor") | reject("none") | list | length == 0 -%}
        {{ return(none) }}
    {%- endif -%}
    {%- if tables | length == 1 -%}
        {{ return(strandline.shown_from(tables[0].floor)) }}
    {%- endif -%}
    {%- set conditions = [] -%}
    {%- for table in tables -%}
        {%- set of_table = "_cq_table = " ~ strandline.text_literal(table.name) -%}
        {%- do conditions.append(
            "(" ~ of_table ~ (" and " ~ strandline.shown_from(table.floor) if table.floor is not none else "") ~ ")"
        ) -%}
    {%- endfor -%}
    {{ return(conditions | join(" or ")) }}
{%- endmacro %}
