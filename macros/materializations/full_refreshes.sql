{% macro complete_refreshes(relation, head, owner) -%}
    {#-
        The complete full refreshes of a raw table up to a batch, oldest first: {batch, generation,
        began_at in microseconds, source if the table is shared}. What a refresh did not find has vanished
        from the source. A refresh is complete if the ledger says so; an interrupted one hides nothing. Nor does one
        with a higher generation than the newest batch: raw was rolled back behind it.
    -#}
    {%- if relation is string -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": delete_stale looks up a raw table in the ledger, so it needs the table itself: "
            ~ "source('shop', 'orders') instead of a SELECT."
        ) }}
    {%- endif -%}
    {#- What a unit test gives in place of a table has no schema, and a unit test has no graph. -#}
    {%- if not relation.schema and graph.get("nodes") -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": the ledger knows raw tables only, and " ~ relation ~ " is an ephemeral model. Give the table itself, "
            ~ "source('shop', 'orders')."
        ) }}
    {%- endif -%}
    {%- set syncs = strandline.syncs_relation(relation.schema) if relation.schema else none -%}
    {%- if syncs is none or not strandline.exists(syncs) -%}
        {{ return([]) }}
    {%- endif -%}
    {%- set sharers = strandline.sharers(relation) -%}
    {%- set refreshes_sql -%}
        select
            batch,
            generation,
            began_at,
            source_name
        from (
            select
                *,
                max_by(generation, batch) over ({{ "partition by source_name" if sharers }}) as newest
            from (
                select
                    batch,
                    max(generation) as generation,
                    unix_micros(min(started_at)) as began_at,
                    max(source_name) as source_name,
                    bool_or(mode = 'full_refresh') as read_everything
                from {{ syncs }} as syncs
                where table_name = {{ strandline.text_literal(relation.identifier) }}
                    and status in ('synced', 'recovered')
                    {%- if head is not none %}
                    and batch <= {{ head }}
                    {%- endif %}
                group by batch
            ) as batches
        ) as ranked
        where read_everything and generation <= newest
        order by batch
    {%- endset -%}
    {%- set refreshes = [] -%}
    {%- for row in run_query(refreshes_sql) -%}
        {%- do refreshes.append({
            "batch": row[0] | int,
            "generation": row[1] | int,
            "began_at": row[2] | int,
            "source": row[3] if sharers else none,
        }) -%}
    {%- endfor -%}
    {{ return(refreshes) }}
{%- endmacro %}


{% macro check_ledger(relation, owner) -%}
    {#- For delete_stale: without a ledger no full refresh is complete, and what vanished would be shown again. -#}
    {%- set syncs = strandline.syncs_relation(relation.schema) if relation is not string and relation.schema else none -%}
    {%- if syncs is not none and not strandline.exists(syncs) -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": delete_stale hides what the newest complete full refresh no longer found, and the ledger that says which "
            ~ "ones are complete is not there: " ~ syncs ~ ". `loader run` makes it; if it has another name, set the variable "
            ~ "strandline__syncs_table."
        ) }}
    {%- endif -%}
{%- endmacro %}


{% macro asked_tables(tables, purpose, owner) -%}
    {#- The raw tables that a model reads, for settings that need the tables themselves. -#}
    {%- if tables | map(attribute="relation") | select("none") | list -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": " ~ purpose ~ " needs the raw tables, and none is known: name them in the SELECT by source()."
        ) }}
    {%- endif -%}
    {%- set as_of = config.get("as_of") -%}
    {%- if purpose == "as_of" and tables | length > 1 and strandline.moment(as_of, owner).kind != "time" -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": as_of " ~ as_of ~ " names a batch or a snapshot, but each of "
            ~ tables | map(attribute="name") | join(", ") ~ " numbers its own. Use a time."
        ) }}
    {%- endif -%}
    {{ return(tables) }}
{%- endmacro %}
