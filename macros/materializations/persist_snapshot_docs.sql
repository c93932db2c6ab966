{% macro persist_snapshot_docs(target) -%}
    {#- Writes only what differs: a build with nothing new must leave no trace. -#}
    {%- if config.persist_column_docs() and model.columns -%}
        {%- set stored = {} -%}
        {%- for row in run_query("describe table " ~ target) -%}
            {%- do stored.update({row[0] | lower: row[2] or ""}) -%}
        {%- endfor -%}
        {%- for column in model.columns.values() -%}
            {%- set current = stored.get(column.name | lower) -%}
            {%- if current is not none and current != column.description -%}
                {%- do strandline.run_statement(
                    "alter table " ~ target ~ " alter column " ~ strandline.quoted(column.name)
                    ~ " comment " ~ strandline.text_literal(column.description)
                ) -%}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro %}
