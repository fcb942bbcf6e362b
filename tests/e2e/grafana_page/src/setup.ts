// The parts of Grafana that live in its server's front end and not in its libraries: registries, services, query runner.
import * as data from '@grafana/data';
import * as runtime from '@grafana/runtime';
import { registerRuntimeDataSource } from '@grafana/scenes';
import { from, Observable, of } from 'rxjs';
import { PrometheusSource } from './datasource';
import { fail } from './report';

export const source = new PrometheusSource();

const anything: any = data;
const services: any = runtime;

function property(id: string, process: any, defaultValue?: unknown): any {
  return { id, path: id, name: id, description: '', editor: () => null, override: () => null, process, shouldApply: () => true, settings: {}, defaultValue };
}

function registries(): void {
  anything.standardFieldConfigEditorRegistry.setInit(() => [
    property('unit', data.unitOverrideProcessor),
    property('min', data.numberOverrideProcessor),
    property('max', data.numberOverrideProcessor),
    property('decimals', data.numberOverrideProcessor),
    property('displayName', data.displayNameOverrideProcessor),
    property('color', data.identityOverrideProcessor, { mode: 'palette-classic' }),
    property('noValue', data.stringOverrideProcessor),
    property('links', data.dataLinksOverrideProcessor),
    property('mappings', data.valueMappingsOverrideProcessor, []),
    property('thresholds', data.thresholdsOverrideProcessor),
  ]);
  anything.standardEditorsRegistry.setInit(() => []);
  data.standardTransformersRegistry.setInit(() =>
    [...new Map(Object.values(data.standardTransformers).map((one: any) => [one.id, one])).values()].map((one: any) => ({ id: one.id, name: one.name, description: '', transformation: async () => one, editor: () => null as any, imageDark: '', imageLight: '' })),
  );
}

function runRequest(target: any, request: any): Observable<any> {
  return new Observable((out: any) => {
    const running = from(target.answer(request)).subscribe({
      next: (answer: any) => out.next({ state: data.LoadingState.Done, series: answer.data, timeRange: request.range, request }),
      error: (err: unknown) => {
        fail(err);
        out.next({ state: data.LoadingState.Error, series: [], timeRange: request.range, request, error: { message: String(err) } });
        out.complete();
      },
      complete: () => out.complete(),
    });
    return () => running.unsubscribe();
  });
}

export function setUp(theme: data.GrafanaTheme2): void {
  registries();
  const settings: any = { uid: 'prom', name: 'prom', type: 'prometheus', meta: { id: 'prometheus', info: { logos: {} } }, readOnly: true, jsonData: {}, access: 'proxy' };
  (source as any).meta = settings.meta;
  services.setDataSourceSrv({ get: async () => source, getList: () => [settings], getInstanceSettings: () => settings, reload() {}, registerRuntimeDataSource() {} });
  runtime.setRunRequest(runRequest as any);
  services.setTemplateSrv({ getVariables: () => [], replace: (text: string) => text ?? '', containsTemplate: () => false, updateTimeRange() {} });
  services.setAppEvents?.(new data.EventBusSrv());
  services.setBackendSrv({ get: async () => ({}), fetch: () => of({}) });
  const config: any = runtime.config;
  config.theme2 = theme;
  config.theme = theme.v1;
  config.panels = {};
  config.featureToggles = {};
  config.bootData = { user: { timezone: 'utc', weekStart: 'monday', locale: 'en' }, settings: {}, navTree: [] };
  registerRuntimeDataSource({ dataSource: source });
}
