{% macro run_statement(sql) -%}
    {#- For what returns no rows: over Thrift there is nothing that run_query() could fetch. -#}
    {%- call statement("strandline_statement", fetch_result=false, auto_begin=false) -%}
        {{ sql }}
    {%- endcall -%}
{%- endmacro %}
