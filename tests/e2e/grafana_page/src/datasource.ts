// A small Prometheus data source: @grafana/prometheus is under another licence than this project.
import { DataFrame, FieldType, LoadingState, toDataFrame } from '@grafana/data';
import { RuntimeDataSource, sceneGraph } from '@grafana/scenes';
import { from } from 'rxjs';
import { fail, report } from './report';

const STEPS_WANTED = 600;

interface Series {
  metric: Record<string, string>;
  values?: [number, string][];
  value?: [number, string];
}

async function ask(path: string, query: Record<string, string>): Promise<any> {
  const answer = await (await fetch(`./prom/api/v1/${path}?${new URLSearchParams(query)}`)).json();
  if (answer.status !== 'success') {
    throw new Error(`${answer.error}: ${query.query}`);
  }
  return answer.data;
}

const number = (text: string): number | null => (text === 'NaN' ? null : Number(text));

function legendOf(format: string, metric: Record<string, string>, expr: string): string {
  if (!format || format === '__auto') {
    return metric.__name__ ?? (Object.values(metric).join(' ') || expr);
  }
  return format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => metric[label] ?? '');
}

function asTable(series: Series[], refId: string): DataFrame {
  const labels = [...new Set(series.flatMap((one) => Object.keys(one.metric)))].sort();
  return toDataFrame({
    refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: series.map((one) => one.value![0] * 1000) },
      ...labels.map((label) => ({ name: label, type: FieldType.string, values: series.map((one) => one.metric[label] ?? '') })),
      { name: refId ? `Value #${refId}` : 'Value', type: FieldType.number, values: series.map((one) => number(one.value![1])) },
    ],
  });
}

function asFrames(series: Series[], target: any, expr: string, start: number, end: number, step: number): DataFrame[] {
  return series.map((one) => {
    const points = one.values ?? [one.value!];
    const name = legendOf(target.legendFormat, one.metric, expr);
    const known = new Map(points.map(([time, value]) => [Math.round(time), number(value)]));
    const times = one.values ? Array.from({ length: Math.floor((end - start) / step) + 1 }, (_, i) => start + i * step) : [points[0][0]];
    return toDataFrame({
      refId: target.refId,
      name,
      fields: [
        { name: 'Time', type: FieldType.time, values: times.map((time) => time * 1000), config: { interval: step * 1000 } },
        {
          name: 'Value',
          type: FieldType.number,
          labels: one.metric,
          values: one.values ? times.map((time) => known.get(Math.round(time)) ?? null) : [number(points[0][1])],
          config: { displayNameFromDS: name },
        },
      ],
    });
  });
}

export class PrometheusSource extends RuntimeDataSource {
  constructor() {
    super('prometheus', 'prom');
  }

  interpolate(text: string, request: any): string {
    const scene = request.scopedVars?.__sceneObject?.value?.valueOf?.() ?? request.scopedVars?.__sceneObject?.value;
    const joined = (value: unknown) => (Array.isArray(value) ? value.join('|') : String(value));
    return scene ? sceneGraph.interpolate(scene, text, request.scopedVars, joined) : text;
  }

  query(request: any): any {
    return from(this.answer(request));
  }

  async answer(request: any): Promise<any> {
    const start = request.range.from.unix();
    const end = request.range.to.unix();
    const step = Math.max(15, Math.ceil((end - start) / STEPS_WANTED / 15) * 15);
    const data: DataFrame[] = [];
    for (const target of request.targets) {
      const expr = this.interpolate(target.expr, request);
      const now = target.instant && !target.range;
      const found = now
        ? await ask('query', { query: expr, time: String(end) })
        : await ask('query_range', { query: expr, start: String(start), end: String(end), step: String(step) });
      const series = found.result as Series[];
      report.queries.push({ panel: target.__title ?? '', expr, series: series.length });
      if (target.format === 'table') {
        data.push(asTable(series, request.targets.length > 1 ? target.refId : ''));
      } else {
        data.push(...asFrames(series, target, expr, start, end, step));
      }
    }
    return { data, state: LoadingState.Done };
  }

  async metricFindQuery(query: any, options: any): Promise<{ text: string }[]> {
    const text = this.interpolate(typeof query === 'string' ? query : query.query, options ?? {});
    const parts = /^label_values\((.+),\s*(\w+)\)$/.exec(text);
    if (!parts) {
      fail(`variable query not understood: ${text}`);
      return [];
    }
    const times: Record<string, string> = options?.range
      ? { start: String(options.range.from.unix()), end: String(options.range.to.unix()) }
      : {};
    const values: string[] = await ask(`label/${parts[2]}/values`, { 'match[]': parts[1], ...times });
    if (!values.length) {
      fail(`variable without values: ${text}`);
    }
    return values.map((value) => ({ text: value }));
  }

  async spans(expr: string, start: number, end: number): Promise<{ from: number; to: number; text: string }[]> {
    const found = await ask('query_range', { query: expr, start: String(start), end: String(end), step: '60' });
    return (found.result as Series[]).map((one) => ({
      from: one.values![0][0] * 1000,
      to: one.values![one.values!.length - 1][0] * 1000,
      text: one.metric.code ?? '',
    }));
  }

  testDatasource(): Promise<any> {
    return Promise.resolve({ status: 'success', message: '' });
  }
}
